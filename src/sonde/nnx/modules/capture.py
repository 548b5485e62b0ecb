"""`nnx.capture`: what Modules sow, and the outputs of their methods, as States."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sonde.core import (
    ADDED,
    Call,
    ModuleRequest,
    calls_of,
    check_callable,
    paths_below,
    run_by_rule,
    run_with,
)
from sonde.nnx.modules.module import Module
from sonde.nnx.modules.module_sites import Types
from sonde.nnx.modules.recording import (
    GivenValues,
    Key,
    ModuleRecording,
    Values,
    collected,
    gradient_of_call,
    perturbed_to_zeros,
    value_of_call,
)
from sonde.nnx.states.state import State, from_flat_state, to_flat_state
from sonde.nnx.variable.kinds import Intermediate, Perturbation
from sonde.nnx.variable.variable import Variable


def capture(
    fn: Callable[..., Any],
    *var_types: type[Variable[Any]],
    init: Mapping[Any, Any] | None = None,
    method_outputs: type[Variable[Any]] | None = None,
) -> Callable[..., Any]:
    """Makes a function that runs `fn` and also returns what its Modules sowed.

    Nothing is stored in the Modules. Values are returned from inside every transform, Sonde's or JAX's: a loop gives
    one row per iteration, `vmap` puts the mapped axis first.

    Args:
        fn: A function whose first Module argument is the model, a Module, or a bound method of one. If it is a type of
            Variable, a decorator is returned.
        *var_types: The types of Variable to return. Subclasses are not included: name them too.
        init: Initial values, as an earlier capture returned them: `perturb` adds them, `sow` continues from them.
        method_outputs: A type of Variable. The output of every public method, and of `__call__`, is recorded as this
            type under the method's name.

    Returns:
        A function that returns the result and one State per type; the result alone if there are no types.

    Raises:
        TypeError: `fn` is not callable, a type is not a type of Variable, or no Module is found.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> class Double(nnx.Module):
        ...     def __call__(self, x):
        ...         self.sow(nnx.Intermediate, "twice", x * 2)
        ...         return x * 2 + 1
        >>> y, seen = nnx.capture(Double(), nnx.Intermediate)(jnp.float32(3.0))
        >>> print(y, seen["twice"].get_value()[0])
        7.0 6.0
    """
    if isinstance(fn, type) and issubclass(fn, Variable):
        return lambda actual: capture(actual, fn, *var_types, init=init, method_outputs=method_outputs)
    _check_types(var_types, method_outputs)
    types = var_types or ((method_outputs,) if method_outputs else ())
    check_callable(fn, "nnx.capture")
    begin = _given_values(init)

    @functools.wraps(fn if hasattr(fn, "__name__") else type(fn).__call__)
    def captured(*args: Any, **kwargs: Any) -> Any:
        root = _root(fn, args, kwargs)
        result, calls = _run(fn, args, kwargs, root, types, begin, method_outputs)
        states = _states(collected(calls, types, begin, perturbed_to_zeros), root)
        return (result, *(states[t] for t in types)) if types else result

    captured.__wrapped__ = fn  # pyright: ignore[reportAttributeAccessIssue]
    return captured


def capture_grads(
    fn: Callable[..., Any],
    *var_types: type[Variable[Any]],
    method_outputs: type[Variable[Any]] | None = None,
) -> Callable[..., Any]:
    """Makes a function that runs a training step and also returns values and gradients inside the model, in one pass.

    Any `nnx.grad`, `nnx.value_and_grad` or JAX's own that runs inside `fn` yields the gradient at each value that
    `Module.sow` or `Module.perturb` was given, and at the outputs of methods.

    Args:
        fn: The step: a function whose first Module argument is the model, a Module, or a bound method.
        *var_types: The types of Variable to record; Intermediate and Perturbation by default.
        method_outputs: A type of Variable. The output of every public method, and of `__call__`, is recorded as this
            type.

    Returns:
        A function that returns the result of `fn`, a State of values and a State of gradients.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> class Square(nnx.Module):
        ...     def __init__(self):
        ...         self.w = nnx.Param(jnp.float32(3.0))
        ...     def __call__(self, x):
        ...         h = x * self.w
        ...         self.sow(nnx.Intermediate, "h", h)
        ...         return h**2
        >>> step = lambda model, x: nnx.grad(lambda m: m(x))(model)
        >>> grads, values, inner = nnx.capture_grads(step)(Square(), jnp.float32(2.0))
        >>> print(values["h"].get_value()[0], inner["h"].get_value()[0])
        6.0 12.0
    """
    _check_types(var_types, method_outputs)
    check_callable(fn, "nnx.capture_grads")
    types = var_types or tuple(dict.fromkeys(t for t in (Intermediate, Perturbation, method_outputs) if t))

    @functools.wraps(fn if hasattr(fn, "__name__") else type(fn).__call__)
    def captured(*args: Any, **kwargs: Any) -> Any:
        root = _root(fn, args, kwargs)
        result, calls = _run(fn, args, kwargs, root, types, {}, method_outputs, grads=True)
        values = _states(collected(calls, types, {}, lambda call, tag: value_of_call(call)), root)
        grads = _states(collected(calls, types, {}, lambda call, tag: gradient_of_call(call)), root)
        return result, State.merge(*values.values()), State.merge(*grads.values())

    captured.__wrapped__ = fn  # pyright: ignore[reportAttributeAccessIssue]
    return captured


# ---------------------------------------------------------------------------------------------------------------------
# Before the run
# ---------------------------------------------------------------------------------------------------------------------


def _check_types(var_types: tuple[Any, ...], method_outputs: type | None) -> None:
    for t in (*var_types, *([method_outputs] if method_outputs is not None else [])):
        if not (isinstance(t, type) and issubclass(t, Variable)):
            raise TypeError(f"nnx.capture takes types of Variable, such as nnx.Intermediate; got {t!r}")


def _root(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Module:
    """The Module that paths count from."""
    for f in (fn, inspect.unwrap(fn)):
        if isinstance(f, Module):
            return f
        if isinstance(getattr(f, "__self__", None), Module):
            return f.__self__  # pyright: ignore[reportFunctionMemberAccess]
        if isinstance(f, functools.partial):
            args = (*f.args, *args)
    for x in (*args, *kwargs.values()):
        if isinstance(x, Module):
            return x
    name, argument_types = getattr(fn, "__qualname__", fn), ", ".join(type(x).__name__ for x in args) or "no arguments"
    raise TypeError(
        f"nnx.capture of {name!r} found no Module: pass the model as an argument, or capture the Module or "
        f"a bound method of it; got {argument_types}"
    )


def _given_values(init: Mapping[Any, Any] | None) -> Values:
    """The values of a State by type, path of the Module, and name."""
    initial: Values = {}
    for path, leaf in to_flat_state(init) if init else ():
        if isinstance(leaf, Variable):
            *module, name = [key for key in path if key != ""]  # an empty name: see `_nested`
            initial.setdefault(type(leaf), {})[_text(module), str(name)] = leaf.get_value()
    return initial


# ---------------------------------------------------------------------------------------------------------------------
# The run
# ---------------------------------------------------------------------------------------------------------------------


def _run(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    root: Module,
    types: tuple[type, ...],
    initial: Values,
    outputs: type | None,
    *,
    grads: bool = False,
) -> tuple[Any, list[Call]]:
    """The result, and what was recorded."""
    inner = fn
    if any(initial.values()):

        def inner(*args: Any, **kwargs: Any) -> Any:
            request = ModuleRequest(root, more=Types(given=tuple(initial)), sows=False)
            return run_by_rule(fn, GivenValues(initial), args, kwargs, ADDED, counts_calls=False, request=request)[0]

    if any(initial.values()) and not types:
        return inner(*args, **kwargs), []
    # Without types the capture records nothing, but it must run: outside of captures, `sow` stores in the Module.
    handler = ModuleRecording(types, initial, grads=grads)
    result = run_with(
        handler,
        inner,
        args,
        kwargs,
        grads=grads,
        request=ModuleRequest(root, more=Types(types, outputs=outputs), sows=False),
    )
    return result, calls_of(handler)


# ---------------------------------------------------------------------------------------------------------------------
# After the run
# ---------------------------------------------------------------------------------------------------------------------


def _text(path: Iterable[Any]) -> str:
    """A path in a model, as the engine writes it."""
    return "/".join(map(str, path))


def _states(values_by_type: Values, root: Module) -> dict[type, State[Any, Any]]:
    """One State per type."""
    keys = {_text(path): path for path in paths_below(root)}
    return {t: _nested(t, values, keys) for t, values in values_by_type.items()}


def _nested(variable_type: type, values: Mapping[Key, Any], modules: Mapping[str, Any]) -> State[Any, Any]:
    """A State of Variables.

    A Module that sows under the name of one of its children keeps both: its own value has an empty name below the
    child's.
    """
    flat = {(*_keys(path, modules), name): value for (path, name), value in values.items() if value is not None}
    inner = {path[:i] for path in flat for i in range(len(path))}
    return from_flat_state([((*p, "") if p in inner else p, variable_type(v)) for p, v in flat.items()])


def _keys(path: str, modules: Mapping[str, Any]) -> tuple[Any, ...]:
    """The keys of a Module in a State: the model's own for Modules it has, keys made from the path for others."""
    if path in modules or not path:
        return modules.get(path, ())
    above, _, name = path.rpartition("/")
    return *_keys(above, modules), int(name) if name.isdigit() else name
