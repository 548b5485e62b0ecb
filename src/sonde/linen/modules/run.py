"""Runs functions of a module on variables: the shared part of `init`, `apply` and `bind`.

Every function of a module, at the top and inside lifted transforms, runs through `perform`.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp

from sonde._array_text import describe
from sonde.core import split_arrays
from sonde.errors import (
    ApplyModuleInvalidMethodError,
    ApplyScopeInvalidVariablesStructureError,
    ApplyScopeInvalidVariablesTypeError,
    LazyInitError,
)
from sonde.flax.flags import flag
from sonde.flax.release import follows
from sonde.linen.flax_names.flags import frozen
from sonde.linen.modules import attach
from sonde.linen.modules.context import Capture
from sonde.linen.variables import sites
from sonde.linen.variables.filters import DenyList, Either, Filter, check, matches
from sonde.linen.variables.rng import Rngs, streams
from sonde.linen.variables.scope import Run, Scope, check_no_dead_tracers, open_collections

if TYPE_CHECKING:
    from sonde.linen.modules.module import Module

T = TypeVar("T")
ALL_BUT_INTERMEDIATES = DenyList("intermediates")


def perform(run: Run, scopes: list[Scope], fn: Callable[[], T]) -> T:
    """Runs the body of a run and closes it: afterwards its modules can no longer be used.

    Args:
        run: The run.
        scopes: Its outermost scopes.
        fn: The body.
    """
    try:
        return sites.gathering(run, scopes, fn)
    finally:
        # Drop what refers back to the run, so that its values are freed at once and not by the garbage collector.
        run.live = False
        run.roots, run.gather = (), None
        run.adopted.clear()


def check_variables(variables: Any, *, where: str) -> Mapping[str, Any]:
    """Checks that variables are a dict of collections.

    Raises:
        ApplyScopeInvalidVariablesTypeError: They are something else.
        ApplyScopeInvalidVariablesStructureError: They have one layer too many.
    """
    valid = isinstance(variables, Mapping) and all(
        isinstance(name, str) and isinstance(tree, Mapping) and all(isinstance(key, str) for key in tree)
        for name, tree in variables.items()
    )
    if not valid:
        what_was_given = (
            f"a dict with keys {list(variables)[:5]}" if isinstance(variables, Mapping) else repr(type(variables))
        )
        raise ApplyScopeInvalidVariablesTypeError(
            f"the first argument of {where} must be a dict of collections, each a dict with strings as keys, such as "
            f"{{'params': ...}}; got {what_was_given}"
        )
    params = variables.get("params", {})
    if set(params) == {"params"} and isinstance(params["params"], Mapping):
        raise ApplyScopeInvalidVariablesStructureError(
            f"the variables given to {where} have one 'params' too many: {{'params': {{'params': ...}}}}; pass "
            "variables "
            "as init returns them, or {'params': params} with the inner dict"
        )
    return variables


def function_of(module: Module, method: Callable[..., Any] | str | None, *, where: str) -> Callable[..., Any]:
    """The function that `method` means, to be called with the bound module as its first argument.

    Raises:
        ApplyModuleInvalidMethodError: `method` is neither a function nor the name of a method.
    """
    if method is None:
        method = "__call__"
    if isinstance(method, str):
        name = method
        attribute = getattr(type(module), name, None)
        if attribute is None and name in attach.fields_of(module):
            attribute = getattr(module, name)
        if attribute is None:
            raise AttributeError(
                f"cannot call {where} with method={name!r}: {type(module).__name__} has no such attribute"
            )
        if not callable(attribute):
            raise ApplyModuleInvalidMethodError(
                f"cannot call {where} with method={name!r}: it is a {type(attribute).__name__} of "
                f"{type(module).__name__} and cannot be called"
            )
        return lambda bound, *args, **kwargs: getattr(bound, name)(*args, **kwargs)
    if not callable(method):
        raise ApplyModuleInvalidMethodError(
            f"cannot call {where} with method={method!r}: pass a function that takes the module first, or the name of "
            f"a method of {type(module).__name__}"
        )
    function = getattr(method, "__func__", method)
    if not _takes_a_module(function):
        raise ApplyModuleInvalidMethodError(
            f"cannot call {where} with method={method!r}: the function must take the module as its first argument, "
            "but this one takes no argument"
        )
    return function


def _takes_a_module(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a callable without a signature
        return True
    return any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL) for p in parameters)


def root_scope(
    variables: Mapping[str, Any],
    rngs: Rngs,
    mutable: Filter,
    *,
    where: str,
    initializing: bool = False,
    capture: Capture = False,
) -> Scope:
    """A new run with its outermost scope."""
    named = streams(rngs, where=where)
    run = Run(mutable=check(mutable), initializing=initializing, capture=capture)
    return Scope(run, open_collections(variables, mutable), streams=named)


def with_intermediates(mutable: Filter, capture: Capture) -> Filter:
    """Makes the collection of captured outputs mutable if there will be any."""
    return Either((mutable, "intermediates")) if capture else mutable


def changed_variables(scope: Scope) -> Any:
    """The collections that were allowed to change, as they are now."""
    changed = {name: tree for name, tree in scope.collections().items() if matches(scope.run.mutable, name)}
    for name, tree in changed.items():
        check_no_dead_tracers(tree, name, scope.path)
    return frozen(changed) if flag("flax_return_frozendict") else changed


def apply(
    fn: Callable[..., Any],
    module: Module,
    mutable: Filter = False,
    capture_intermediates: Capture = False,
) -> Callable[..., Any]:
    """A pure function `(variables, *args, rngs=None, **kwargs)` that runs `fn(bound_module, *args, **kwargs)`.

    It returns the output of `fn`, or with `mutable` a pair of that and the variables that may have changed.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> f = nn.apply(lambda m, x: m(x) + 1, nn.Dropout(0.5, deterministic=True))
        >>> float(f({}, jnp.float32(1)))
        2.0
    """

    @functools.wraps(fn)
    def applied(variables: Mapping[str, Any], *args: Any, rngs: Rngs = None, **kwargs: Any) -> Any:
        return run_apply(
            module,
            fn,
            variables,
            args,
            kwargs,
            rngs=rngs,
            mutable=mutable,
            capture=capture_intermediates,
            where="apply",
        )

    return applied


def run_apply(
    module: Module,
    fn: Callable[..., Any],
    variables: Mapping[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    rngs: Rngs,
    mutable: Filter,
    capture: Capture,
    where: str,
    initializing: bool = False,
) -> Any:
    """Runs a module function on variables; see `apply`."""
    where = f"{where} of {type(module).__name__}"
    mutable = with_intermediates(check(mutable), capture)
    scope = root_scope(
        check_variables(variables, where=where), rngs, mutable, where=where, initializing=initializing, capture=capture
    )
    bound = module.clone(parent=scope, _deep_clone=True)
    output = perform(scope.run, [scope], lambda: fn(bound, *args, **kwargs))
    if mutable is False:
        return output
    return output, changed_variables(scope)


def init_with_output(
    fn: Callable[..., Any],
    module: Module,
    mutable: Filter = ALL_BUT_INTERMEDIATES,
    capture_intermediates: Capture = False,
) -> Callable[..., Any]:
    """A pure function `(rngs, *args, **kwargs)` that returns the output of `fn` and the variables it makes."""

    @functools.wraps(fn)
    def initialized(rngs: Rngs, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return run_apply(
            module,
            fn,
            {},
            args,
            kwargs,
            rngs=rngs,
            mutable=mutable,
            capture=capture_intermediates,
            where="init",
            initializing=True,
        )

    return initialized


def init(
    fn: Callable[..., Any],
    module: Module,
    mutable: Filter = ALL_BUT_INTERMEDIATES,
    capture_intermediates: Capture = False,
) -> Callable[..., Any]:
    """A pure function `(rngs, *args, **kwargs)` that returns the variables that `fn` makes."""
    initialized = init_with_output(fn, module, mutable, capture_intermediates)

    @functools.wraps(fn)
    def only_variables(rngs: Rngs, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return initialized(rngs, *args, **kwargs)[1]

    return only_variables


def lazy_init(
    initialize: Callable[..., Any], rngs: Rngs, args: tuple[Any, ...], kwargs: dict[str, Any], *, where: str
) -> Any:
    """Runs an init on inputs that may be given as shapes.

    Arrays are used as they are; a `jax.ShapeDtypeStruct` stands for an input whose value must not matter. This is
    checked by mapping over it: an output that is the same for all its values comes out unmapped.

    If one differs, Flax 0.12.12 computes it from zeros; so does this function, with a warning.

    Raises:
        LazyInitError: A variable depends on an input that was given as a shape, with the behavior of Flax 0.12.8.
    """
    shapes_only, static_part = split_arrays((args, kwargs), lambda x: isinstance(x, jax.ShapeDtypeStruct))

    def run(values: list[Any]) -> Any:
        args, kwargs = static_part.whole(values)
        return initialize(rngs, *args, **kwargs)

    if shapes_only:
        # A mapped axis marks whatever depends on these inputs, without giving them values.
        rows = [jax.ShapeDtypeStruct((1, *x.shape), x.dtype) for x in shapes_only]
        try:
            jax.eval_shape(jax.vmap(run, out_axes=None), rows)
        except ValueError as error:
            if "out_axes" not in str(error):
                raise
            shapes = ", ".join(describe(x) for x in shapes_only)
            problem = (
                f"{where} makes a variable whose initial value depends on the values of its inputs, but these "
                f"were given as shapes only ({shapes}); pass arrays, or make the initializer use the shapes alone"
            )
            if not follows(0, 12, 12):
                raise LazyInitError(problem) from error
            warnings.warn(f"{problem}. Here it is computed from zeros.", stacklevel=3)
    # Where no output depends on the zeros, jit removes what is computed from them.
    return jax.jit(lambda: run([jnp.zeros(x.shape, x.dtype) for x in shapes_only]))()
