"""The one pass over a program: at every site, statistics, traits, pictures and what the search for a NaN needs.

All of it is made on the device. Large arrays, and all in loops, are reduced where they are, inside compiled steps. For
small ones that would not pay: the compiler takes a fifth of a second for the statistics of every site. They stay as
they are until the step is over, and are then reduced by one compiled function for all of the same shape.

If the program fails, what was seen before is kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde.core.arrays import arrays_in
from sonde.core.axes import spread
from sonde.core.capture import run_with
from sonde.core.context import look
from sonde.core.item import Extra, Item, expand
from sonde.core.path import Pattern
from sonde.core.record import Records, make_records
from sonde.core.site import Site, View
from sonde.errors import CaptureError, NoSuchSiteError
from sonde.report.slices import LIMITS, LIMITS_IN_LOOPS, Limits, pictures
from sonde.report.traits import traits_of_parts
from sonde.tools.events import Watching, first_bad
from sonde.tools.statistics import moments_of_parts

SMALL = 2**20
"""Up to how many bytes the arrays of a site are kept whole until the step is over."""
_JOIN = (jnp.add, jnp.add, jnp.minimum, jnp.maximum, jnp.add)  # how those of several arrays become one
_NUMBERS = 6  # how many leaves `numbers_of` has; they come first, as `Watching` wants them


@jax.jit
def _seen(value: Any) -> tuple[Any, Any, Any]:
    traits = traits_of_parts(value)
    return _numbers(traits, sum(x.size for x, t in zip(value, traits) if t)), moments_of_parts(value), traits


def _numbers(traits: list[dict[str, Any]], size: int) -> list[Any]:
    """What `tools.events.numbers_of` returns, except that -Inf is no accident: it is what masks are made of."""
    found = [t for t in traits if t]
    nans, infs = (sum((t[name] for t in found), jnp.zeros((), jnp.int32)) for name in ("nan", "plus_inf"))
    low, high = jnp.full((), jnp.inf, jnp.float32), jnp.full((), -jnp.inf, jnp.float32)
    for t in found:
        low, high = jnp.minimum(low, t["low"].astype(low.dtype)), jnp.maximum(high, t["high"].astype(high.dtype))
    return [nans, infs, low, high, jnp.asarray(size, jnp.int32), jnp.zeros((0,), jnp.int32)]


def _reduce(value: Any) -> tuple[Any, Any, Any]:
    with _own_settings():
        return _seen(arrays_in(value))


@contextlib.contextmanager
def _own_settings() -> Iterator[None]:
    """Ignores the user's strictness settings while statistics run."""
    with (
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.disable_jit(False),
    ):
        yield


def _whole(value: Any) -> tuple[Any, Any]:
    """The arrays themselves, with nothing yet where `_reduce` has numbers."""
    arrays = arrays_in(value)
    # Inside a shard_map a number must vary over what the arrays vary over: there, it is made of them.
    over_mesh = [x for x in arrays if _jax.varying_axes(x) and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)]
    zero = sum((0 * jnp.sum(x != x, dtype=jnp.int32) for x in over_mesh), jnp.zeros((), jnp.int32))
    return [zero, zero, zero, zero, zero, jnp.zeros((0,), jnp.int32)], arrays


def _fold(old: Sequence[Any], new: Sequence[Any], index: Any) -> list[Any]:
    """In a while loop: of the search for a NaN the first bad iteration, of everything else the last."""
    return [*first_bad(old[:_NUMBERS], new[:_NUMBERS], index), *new[_NUMBERS:]]


class Watch(Watching):
    """Records what `_reduce` makes of values and gradients, when that was, and of values pictures."""

    def __init__(self, patterns: tuple[Pattern, ...], *, grads: bool, depth: int) -> None:
        super().__init__(patterns, grads=grads, reduce=_reduce, fold=_fold, depth=depth)
        self.key = ("watch", self.key)

    @property
    def limits(self) -> Limits:
        """How large pictures may be."""
        return LIMITS_IN_LOOPS if self.indices else LIMITS

    def child(self, base: Any = 1, steps: Sequence[Any] = (), prefix: str | None = None) -> Self:
        """The handler inside. What is compiled for a loop has smaller pictures and must not be used outside of it."""
        new = super().child(base, steps, prefix)
        if new.indices and not self.indices:
            new.key = None if new.key is None else (new.key, "in a loop")
        return new

    def record(self, arrays: list[Any], site: Site, path: str, view: View, extras: dict[Extra, Any]) -> None:
        """Adds pictures to what is recorded."""
        before = len(self.items)
        self.reduce = _whole if not self.indices and _bytes(arrays) <= SMALL else _reduce
        super().record(arrays, site, path, view, extras)
        if len(self.items) == before or not view.is_value or self.reduce is _whole:
            return
        item = self.items[-1]
        assert isinstance(item, Item)
        # Where examples leave a loop at different times the engine selects per example among whole arrays: a picture
        # has no axis of examples to select by.
        apart = view.gates or (self.indices and view.axes)
        mapped = [sum(axis.on_leaf(i) for axis in view.axes) for i in range(len(arrays))]
        with look(None), _own_settings():
            cut = [{} if apart else pictures(x, n, path, self.limits) for x, n in zip(arrays, mapped)]
        item.leaves, item.tree = jax.tree.flatten((jax.tree.unflatten(item.tree, item.leaves), cut))


def _bytes(arrays: Sequence[Any]) -> int:
    return sum(x.size * getattr(x.dtype, "itemsize", 8) for x in arrays)


def _reduced(item: Item) -> Item:
    """An item whose arrays were kept whole, with what `Watch.record` makes of others."""
    whole = jax.tree.unflatten(item.tree, item.leaves)
    if len(whole) != 2 or not isinstance(whole[0], list):  # `(statistics, pictures)`, or the statistics of a gradient
        return item
    numbers, arrays = whole
    # Of several devices an array has an axis only if it varies over them; of examples all arrays have theirs.
    axes = [axis if axis.kind == "mesh" else dataclasses.replace(axis, leaves=None) for axis in item.view.axes]
    found, moments, traits = numbers, [], []
    for i, array in enumerate(arrays):
        seen: Callable = _seen
        for _ in range(sum(axis.on_leaf(_NUMBERS + i) for axis in axes)):
            seen = jax.vmap(seen)
        mine, (its_moments,), (its_traits,) = seen([array])
        mine = [spread(x, axes, _NUMBERS + i) for x in mine[:-1]]
        found = mine if i == 0 else [join(a, b) for join, a, b in zip(_JOIN, found, mine)]
        moments.append(its_moments)
        traits.append(its_traits)
    statistics = [*found[: _NUMBERS - 1], numbers[-1]], moments, traits
    if not item.view.is_value:
        return _with(item, statistics)
    # Where examples take different branches they are put together later, per example: see `Watch.record`.
    cut = [{} if item.view.gates else pictures(x, len(axes), item.path, LIMITS) for x in arrays]
    return _with(item, (statistics, cut))


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """What one run showed.

    Attributes:
        result: What the function returned; None if it failed.
        error: The exception it failed with; None if it did not.
        items: What was seen, in program order; of each the leaves are the numbers that `tools.nonfinite` sorts.
        records: Of every gradient `(numbers, moments, traits)`; of every value that, and the pictures of its arrays.
    """

    result: Any
    error: Exception | None
    items: tuple[Item, ...]
    records: Records


def watch(
    f: Callable, patterns: tuple[Pattern, ...], args: Any, kwargs: Any, *, grads: bool, inside: Any = None
) -> Watched:
    """Runs `f` and keeps what was seen, also if `f` fails.

    Raises:
        NoSuchSiteError: A pattern matches no site.
        CaptureError: A site cannot be captured.
    """
    made: list[Watch] = []

    def make(depth: int) -> Watch:
        made.append(Watch(patterns, grads=grads, depth=depth))
        return made[-1]

    result, error = None, None
    try:
        result, _ = run_with(make, f, args, kwargs, grads=grads, inside=inside)
    except (CaptureError, NoSuchSiteError):
        raise
    except Exception as failure:
        if not made or _is_ours(failure):
            raise
        error = failure
    handler = made[0]
    with _own_settings():
        items = [_reduced(item) for item in expand(handler.items)]
    records = make_records(items, handler.met, reduce=_reduce)
    numbers = []
    for item in items:
        whole = jax.tree.unflatten(item.tree, item.leaves)
        numbers.append(_with(item, whole[0][0] if item.view.is_value else whole[0]))
    return Watched(result, error, tuple(numbers), records)


def _is_ours(error: Exception) -> bool:
    """Whether an exception came out of what looks at the values: no fault of the program, and not to be put on it.

    A program that calls itself without end runs out of frames anywhere, most often in ours, which are the innermost.
    """
    if isinstance(error, RecursionError):
        return False
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(
        frame.f_code in (_reduce.__code__, _whole.__code__, _reduced.__code__, pictures.__code__) for frame in frames
    )


def _with(item: Item, value: Any) -> Item:
    leaves, tree = jax.tree.flatten(value)
    return dataclasses.replace(item, leaves=leaves, tree=tree)
