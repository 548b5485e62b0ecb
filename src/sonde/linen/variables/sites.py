"""Intermediate values of modules: `sow`, `perturb` and `capture_intermediates`.

A value that is sown at the trace level of the run's variables goes straight into its collection, as any variable does.
Inside a JAX transform (`jax.vmap`, `jax.lax.scan`, `jax.jit`, ...), or a lifted transform that does not lift the
collection, that is impossible: the value does not exist outside. There it is marked as a site of the engine, with a tag
that says where it belongs, and the run collects what comes out of the transform. Its form is that of the engine's
records: a loop adds a leading axis of iterations, `vmap` one of elements; a `while_loop` keeps the last value; a branch
that was not taken gives zeros.

A `reduce_fn` other than the default sees the iterations of a loop one by one, in order, and mapped elements together.

During `sonde.capture`, every sown value is a site too, whether its collection is mutable or not: its path is the
module's path and the name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from sonde import _jax, core
from sonde.core import (
    Axis,
    CaptureState,
    Item,
    Recording,
    ScopeName,
    Where,
    are_ends_wanted,
    capture_state,
    expand,
    mark_arguments,
    mark_in_place,
    mark_result,
    name_of_method,
    run_with,
    spread,
    with_capture_state,
)
from sonde.errors import JaxTransformError
from sonde.linen.modules.attach import is_bound
from sonde.linen.modules.context import context
from sonde.linen.variables.filters import may_overlap
from sonde.linen.variables.scope import Path, Run, Scope

if TYPE_CHECKING:
    from sonde.linen.modules.module import Module

T = TypeVar("T")


def append(values: tuple[Any, ...], value: object) -> tuple[Any, ...]:
    """The default of `reduce_fn`: all values of a site in a tuple."""
    return (*values, value)


def empty() -> tuple[Any, ...]:
    """The default of `init_fn`."""
    return ()


@dataclasses.dataclass(frozen=True)
class SownTag:
    """The tag of a value that belongs in a collection.

    Attributes:
        level: Which active run it goes to. A number and not the run itself, because jitted functions
            are traced once and called in many runs.
        collection: The collection.
        path: The module.
        name: The name in the module.
        reduce_fn: Combines values.
        init_fn: Makes the initial value.
    """

    level: int
    collection: str
    path: Path
    name: str
    reduce_fn: Callable[[Any, Any], Any]
    init_fn: Callable[[], Any]


class Gather(Recording):
    """Collects the sown values that belong to one run, and leaves other sites to other handlers.

    Args:
        level: The number of the run.
    """

    def __init__(self, level: int) -> None:
        super().__init__(())
        self.key = ("linen", level, self.key)
        self.level = level
        # Pass values on to outer runs too, not only to captures.
        self.passes_on = level > 1

    def wants(self, where: Where) -> bool:
        """Whether a value belongs to this run."""
        tag = where.marked.tag
        return where.view.is_value and isinstance(tag, SownTag) and tag.level == self.level


def gathering(run: Run, scopes: Sequence[Scope], fn: Callable[[], T]) -> T:
    """Runs the body of a run so that values sown inside transforms arrive in its scopes.

    This is a capture that affects sown values only: other sites of the engine, such as those inside layers, stay off,
    unless a capture is running.

    Args:
        run: The run.
        scopes: Its outermost scopes.
        fn: The body.
    """
    run.roots = scopes
    # If nothing may change, no sown value can be kept, and no capture is needed.
    if not may_overlap(run.mutable, True):
        run.trace = _jax.current_trace()
        return fn()
    outer = capture_state()
    run.level = context.level + 1

    run.gather = Gather(run.level)

    def body() -> T:
        with with_capture_state(outer):
            run.trace = _jax.current_trace()
            output = fn()
            flush(run)
            return output

    context.level += 1
    try:
        return run_with(run.gather, body, (), {})
    finally:
        context.level -= 1


class _ModuleName(ScopeName):
    """The path of a module in JAX's name stack.

    Scopes nest as calls do, but modules nest as they were made: a module called by one that does not own it still has
    its path under its owner.
    """

    own: Path
    around: Path  # the path of the module whose method was running

    def path(self, before: str, depth: int) -> str:
        """The path of the module: replaces that of the calling module, if the capture began outside of it."""
        around = _slashed(self.around)
        return before.removesuffix(around) + _slashed(self.own)


def _slashed(path: Path) -> str:
    return "".join(f"{name}/" for name in path)


@contextlib.contextmanager
def under_path(scope: Scope) -> Iterator[None]:
    """During a capture, puts the sites met in the block under the path of a module."""
    around = context.path if scope.run.root is context.root else ()
    if capture_state() is None or scope.path == around:
        yield
        return
    name = _ModuleName(_slashed(scope.path)[:-1] or "/")
    name.own, name.around = scope.path, around
    before = context.path, context.root
    context.path, context.root = scope.path, scope.run.root
    try:
        with _jax.open_name(name):
            yield
    finally:
        context.path, context.root = before


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """A block that is run only for its variables: values sown in it are dropped."""
    before, context.silent = context.silent, True
    try:
        with with_capture_state(None):
            yield
    finally:
        context.silent = before


def _mark(scope: Scope, name: str, value: object, tag: SownTag | None) -> None:
    state = capture_state()
    if context.silent or (state is None and tag is None):
        return
    with (
        under_path(scope),
        contextlib.nullcontext() if state is not None else with_capture_state(CaptureState(grads=False)),
    ):
        mark_in_place(value, name, tag=tag, depth=4)


def flush(run: Run) -> None:
    """Puts values that came out of transforms since the last call into their collections."""
    if run.gather is None or not run.gather.items:
        return
    # Taken out first: `reduce_fn` is the user's, and may sow again.
    items, run.gather.items = run.gather.items, []
    for item in expand(items):
        sown: Any = item.site.tag
        scope = _place(run, sown.path)
        value = item.site.rebuild([spread(x, item.view.axes, i) for i, x in enumerate(item.leaves)])
        before = scope.get(sown.collection, sown.name) if scope.has(sown.collection, sown.name) else sown.init_fn()
        scope.put(sown.collection, sown.name, combine(sown.reduce_fn, before, value, _loops(item)))


def _place(run: Run, path: Path) -> Scope:
    for root in run.roots:
        if path[: len(root.path)] == root.path:
            return root.descend(path[len(root.path) :])
    raise AssertionError(f"a value was sown at {path}, outside the run")


def _loops(item: Item) -> tuple[Axis, ...]:
    return tuple(axis for axis in item.view.axes if axis.kind == "scan")


def combine(reduce_fn: Callable[[Any, Any], Any], before: object, value: object, loops: tuple[Axis, ...]) -> Any:
    """Applies `reduce_fn` to a value with the axes of loops in front, iteration by iteration.

    The default gets all iterations at once, in one array. So does a function whose result grows, which no loop can
    carry.
    """
    if reduce_fn is append or not loops:
        return reduce_fn(before, value)
    leaves, tree = jax.tree.flatten(value)
    n = math.prod(leaves[0].shape[: len(loops)]) if leaves else 0
    if n == 0:
        return before
    rows = jax.tree.unflatten(tree, [x.reshape(n, *x.shape[len(loops) :]) for x in leaves])
    first = jax.tree.map(lambda x: x[0], rows)
    start = jax.tree.map(jnp.asarray, reduce_fn(before, first))
    then = jax.eval_shape(reduce_fn, start, first)
    if jax.tree.map(_type, start) != jax.tree.map(_type, then):
        return reduce_fn(before, value)
    later_rows = jax.tree.map(lambda x: x[1:], rows)
    return lax.scan(lambda total, row: (jax.tree.map(jnp.asarray, reduce_fn(total, row)), None), start, later_rows)[0]


def _type(x: Any) -> Any:
    return jnp.shape(x), jnp.result_type(x)


def sow(
    module: Module,
    collection: str,
    name: str,
    value: object,
    reduce_fn: Callable[[Any, Any], Any],
    init_fn: Callable[[], Any],
) -> bool:
    """See `Module.sow`."""
    scope = module.bound_scope("sow values")
    scope.check_live()
    home = _home(scope, collection, name, grows=reduce_fn is append)
    if home is None:
        _mark(scope, name, value, None)
        return False
    key = (scope.path, collection, name)
    if key not in home.sown and not scope.has(collection, name):
        scope.reserve(name, collection, what=f"sown {collection!r} value", owner=type(module).__name__)
    # Later values of this name are appended, and must not count as a name in use.
    home.sown.add(key)
    if home is scope.run and home.at_own_level():
        flush(home)
        before = scope.get(collection, name) if scope.has(collection, name) else init_fn()
        scope.put(collection, name, reduce_fn(before, value))
        _mark(scope, name, value, None)
    elif home.gather is None:
        raise JaxTransformError(
            f"module {scope.path_text}, which was bound with bind, sows {name!r} inside a JAX transform, from which "
            f"the value cannot reach collection {collection!r}; use apply(..., mutable={[collection]!r}) inside the "
            "transform"
        )
    else:
        _mark(scope, name, value, SownTag(home.level, collection, scope.path, name, reduce_fn, init_fn))
    return True


def _home(scope: Scope, collection: str, name: str, *, grows: bool) -> Run | None:
    """The innermost run that can keep a value sown into a collection, None if the collection may not change."""
    run: Run | None = scope.run
    while run is not None:
        keeps = run.keeps_sown
        if run.is_mutable(collection) and (keeps is None or keeps(scope, collection, name, grows)):
            return run
        run = run.outer
    return None


def wanted_ends(module: Module, name: str, fun: Callable[..., Any]) -> str | None:
    """The name of a method whose arguments and results a capture wants; None if none does."""
    if capture_state() is None:
        return None
    name = name_of_method(type(module), name, lambda value: getattr(value, "__wrapped_method__", None) is fun)
    return name if are_ends_wanted(name) else None


def call_with_ends(
    module: Module,
    name: str,
    fun: Callable[..., Any],
    run: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Calls a method and marks its arguments and result as the sites `in` and `out` under the module's path.

    A method that is called by its own override belongs to the same call.
    """
    if context.silent or any(m is module and n == name and f is not fun for m, n, f in context.calls):
        return run(*args, **kwargs)
    context.calls.append((module, name, fun))
    try:
        args, kwargs = mark_arguments(name, fun, args, kwargs, is_bound)
        return mark_result(name, fun, run(*args, **kwargs), is_bound)
    finally:
        context.calls.pop()


def offer(module: Module, method: str, output: object) -> None:
    """Sows the output of a method if `capture_intermediates` wants it."""
    capture_filter = module.bound_scope("capture outputs").run.capture
    if (method == "__call__") if isinstance(capture_filter, bool) else capture_filter(module, method):
        module.sow("intermediates", method, output)


def perturb(module: Module, name: str, value: object, collection: str) -> Any:
    """See `Module.perturb`."""
    scope = module.bound_scope("perturb values")
    if not scope.has(collection, name):
        if scope.is_mutable(collection):
            scope.reserve(name, collection, what="perturbation", owner=type(module).__name__)
            scope.put(collection, name, jax.tree.map(jnp.zeros_like, value))
        elif scope.has_collection(collection):
            raise ValueError(
                f"module {scope.path_text} perturbs {name!r}, but the given collection {collection!r} lacks it; make "
                "the collection again with init"
            )
        else:
            return _perturbed(scope, name, value)
    return _perturbed(scope, name, jax.tree.map(jnp.add, value, scope.get(collection, name)))


def _perturbed(scope: Scope, name: str, value: object) -> Any:
    """Marks the value as a site, where a capture can record the gradient too."""
    if context.silent or capture_state() is None:
        return value
    with under_path(scope):
        return core.perturb(value, name)
