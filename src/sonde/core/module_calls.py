"""A call of a module while a capture runs: its scope, and its arguments and result as the sites `in` and `out`."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from sonde.core.context import looking
from sonde.core.module_index import module_kind
from sonde.core.module_paths import calling, overrides_running
from sonde.core.sow import mark

T = TypeVar("T")


def is_module(value: Any) -> bool:
    """Whether a value is a module of a library that is known."""
    return module_kind(value) is not None


def run_method(
    module: Any,
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    keep: Callable[[Any], bool] = is_module,
    after: Callable[[Any], Any] | None = None,
) -> Any:
    """Calls a method of a module, as a scope.

    Args:
        module: The module.
        name: The name of the method.
        fn: The method, a function of the module and the arguments.
        args: The positional arguments.
        kwargs: The keyword arguments.
        keep: Which objects among arguments and results must stay the objects they are.
        after: A function of the result that returns it, called in the scope, unless an overriding method is running.
    """
    state = looking()
    is_super_call = overrides_running(module, name, fn)
    marked = state is not None and not is_super_call and any(name in wanted.methods for wanted in state.modules)
    with calling(module, name, fn):
        prefix = "" if name == "__call__" else f"{name}/"
        if marked:
            args, kwargs = _mark_arguments(args, kwargs, f"{prefix}in", keep, code_of(fn))
        result = fn(module, *args, **kwargs)
        if marked:
            result = mark_arrays(result, f"{prefix}out", keep, code_of(fn))
        return result if after is None or is_super_call else after(result)


def _mark_arguments(args: Any, kwargs: Any, name: str, keep: Any, code: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One argument is a site as it is, several are a tuple, with a dict at the end if there are keywords."""
    if len(args) == 1 and not kwargs:
        return (mark_arrays(args[0], name, keep, code),), kwargs
    if not kwargs:
        return mark_arrays(tuple(args), name, keep, code), kwargs
    *args, kwargs = mark_arrays((*args, kwargs), name, keep, code)
    return tuple(args), kwargs


def mark_arrays(value: T, name: str, keep: Callable[[Any], bool], code: types.CodeType | None, tag: Any = None) -> T:
    """Marks a value in which some objects must stay what they are, though JAX could take them apart."""
    if isinstance(value, jax.Array):
        return mark(value, name, tag=tag, code=code, depth=2)
    leaves, tree = jax.tree.flatten(value, is_leaf=keep)
    kept = [(i, x) for i, x in enumerate(leaves) if keep(x)]
    if not kept:
        return mark(value, name, tag=tag, code=code, depth=2)
    for i, x in kept:
        leaves[i] = f"<{type(x).__name__}>"
    leaves = jax.tree.leaves(mark(jax.tree.unflatten(tree, leaves), name, tag=tag, code=code, depth=2))
    for i, x in kept:
        leaves[i] = x
    return jax.tree.unflatten(tree, leaves)


def code_of(fn: Any) -> types.CodeType | None:
    """The code of a function, for the line that is shown for what it takes and returns."""
    return getattr(inspect.unwrap(fn), "__code__", None)
