"""The one pass over a program: at every site, statistics, traits, pictures and the data for the search for a NaN.

Large arrays are reduced on the device, inside compiled steps. Small ones are kept until the program is over, and then
reduced on the host (`tools.keeping_small`), except in a `while_loop`: there, every iteration must know whether it is
the first bad one.

If the program fails, what was seen before is kept.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core import (
    Axis,
    Extra,
    Item,
    Pattern,
    Records,
    Site,
    View,
    arrays_in,
    expand,
    make_records,
    run_with,
    with_capture_state,
)
from sonde.errors import CaptureError, NoSuchSiteError
from sonde.report.slices import LIMITS, LIMITS_IN_LOOPS, Limits, pictures, pictures_of_rows
from sonde.report.traits import traits_of_parts, traits_of_rows
from sonde.tools.execution.deferred_reduce import KeepingSmall
from sonde.tools.execution.host_transfer import to_host
from sonde.tools.numerics.array_statistics import moments_of_parts, moments_of_rows
from sonde.tools.numerics.events import WHEN, Watching, first_bad, when_it_was
from sonde.tools.numerics.exponents import HostRows, float_type

_NUMBERS = 6  # how many leaves `numbers_of` has; they come first, as `Watching` wants them


@jax.jit
def _seen(value: Any) -> tuple[Any, Any, Any]:
    traits = traits_of_parts(value)
    return _numbers(traits, sum(x.size for x, t in zip(value, traits) if t)), moments_of_parts(value), traits


def _numbers(traits: list[dict[str, Any]], size: int, lead: tuple[int, ...] = (), xp: Any = jnp) -> list[Any]:
    """What `tools.events.numbers_of` returns, except that -Inf does not count as bad: masks are made of it."""
    found = [t for t in traits if t]
    nans, infs = (sum((t[name] for t in found), xp.zeros(lead, np.int32)) for name in ("nan", "plus_inf"))
    dtype = float_type(*(t["low"].dtype for t in found))
    low, high = xp.full(lead, np.inf, dtype), xp.full(lead, -np.inf, dtype)
    for t in found:
        low, high = xp.minimum(low, t["low"].astype(dtype)), xp.maximum(high, t["high"].astype(dtype))
    return [nans, infs, low, high, xp.full(lead, size, np.int32), xp.zeros((0,), np.int32)]


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
    """The arrays themselves, with the time of the event in place of the numbers of `_reduce`."""
    arrays = arrays_in(value)
    # Inside a shard_map a number must vary over the same axes as the arrays, so it is made from them.
    over_mesh = [x for x in arrays if _jax.varying_axes(x) and not jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)]
    zero = sum((0 * jnp.sum(x != x, dtype=jnp.int32) for x in over_mesh), jnp.zeros((), jnp.int32))
    return [zero], arrays


def _alone(value: Any) -> tuple[Any, Any]:
    """The arrays themselves."""
    return [], arrays_in(value)


def _fold(old: Sequence[Any], new: Sequence[Any], index: Any) -> list[Any]:
    """In a while loop, keeps the first bad iteration for the search for a NaN, and the last for everything else."""
    return [*first_bad(old[:_NUMBERS], new[:_NUMBERS], index), *new[_NUMBERS:]]


class Watch(KeepingSmall, Watching):
    """Records the numbers of `_reduce` for values and gradients, their time, and pictures of values."""

    reduced_have_all_axes = False  # an array that is the same on all devices counts once

    def __init__(self, patterns: tuple[Pattern, ...], *, grads: bool, depth: int) -> None:
        super().__init__(patterns, grads=grads, large=_reduce, small=_whole, fold=_fold, depth=depth)
        self.key = ("watch", self.key)
        self._length: int | None = None
        self._in_branch = False

    @property
    def when(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The index of the leaf with the time."""
        return None if self.reduce is _alone else 0 if self.reduce is _whole else WHEN

    @property
    def limits(self) -> Limits:
        """How large pictures may be."""
        return LIMITS_IN_LOOPS if self.indices else LIMITS

    def entering(self, length: int | None = None) -> Self:
        """The handler whose child is about to run a loop of this length."""
        new = super().entering(length)
        new._length = length
        return new

    def in_branch(self) -> Self:
        """The handler of a branch, which may share its outputs with other branches."""
        new = copy.copy(super().in_branch())
        new._in_branch = True
        new.key = None if self.key is None else (self.key, "in a branch")
        return new

    def child(self, base: Any = 1, steps: Sequence[Any] = (), prefix: str | None = None) -> Self:
        """The handler inside. A program compiled for a loop has smaller pictures and must not be used outside it."""
        new = super().child(base, steps, prefix)
        if steps and self._length is None:  # a while loop
            new.iterations = None
            new.key = None if new.key is None else (new.key, "while")
        new._length = None
        if new.indices and not self.indices:
            new.key = None if new.key is None else (new.key, "in a loop")
        return new

    def record(self, arrays: list[Any], site: Site, path: str, view: View, extras: dict[Extra, Any]) -> None:
        """Adds pictures to what is recorded."""
        before = len(self.items)
        # Branches may share an output; then only the program knows which of them ran.
        varies = self._in_branch or view.gates or "taken" in extras or any(map(_jax.varying_axes, arrays))
        self.small = _whole if varies else _alone
        super().record(arrays, site, path, view, extras)
        if len(self.items) == before or not view.is_value or self.reduce is not self.large:
            return
        item = self.items[-1]
        assert isinstance(item, Item)
        # If examples leave a loop at different times, the engine selects whole arrays per example: a picture has no
        # axis of examples to select by.
        apart = view.gates or (self.indices and view.axes)
        mapped = [sum(axis.on_leaf(i) for axis in view.axes) for i in range(len(arrays))]
        with with_capture_state(None), _own_settings():
            cut = [{} if apart else pictures(x, n, path, self.limits) for x, n in zip(arrays, mapped)]
        item.leaves, item.tree = jax.tree.flatten((jax.tree.unflatten(item.tree, item.leaves), cut))


def _keeps(item: Item) -> bool:
    """Whether an item has whole arrays, and not `(statistics, pictures)` or the statistics of a gradient."""
    whole = jax.tree.unflatten(item.tree, item.leaves)
    return len(whole) == 2 and isinstance(whole[0], list)


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)


def _reduced(item: Item) -> Item:
    """Reduces an item whose arrays were kept whole, and are on the host, to what `Watch.record` records."""
    if not _keeps(item):
        return item
    when, arrays = jax.tree.unflatten(item.tree, item.leaves)
    first = len(when)
    # An array has an axis of devices only if it varies over them; axes of examples and loops are always there.
    axes = [axis if axis.kind == "mesh" else dataclasses.replace(axis, leaves=None) for axis in item.view.axes]
    loops = sum(axis.is_loop for axis in axes)
    lead = tuple(axis.size or 1 for axis in axes)
    when = when[0] if when else when_it_was(item, lead)
    found, moments, traits, cut = _numbers([], 0, np.shape(when)[:-1], np), [], [], []
    for i, array in enumerate(arrays):
        front = sum(axis.on_leaf(first + i) for axis in axes)
        if _is_key(array):
            its_moments, its_traits = {}, {}
        else:
            rows, gradient = HostRows.of(array, front), not item.view.is_value
            its_moments = moments_of_rows(rows)
            # The records of branches are combined later, and must have the same form.
            its_traits = traits_of_rows(rows, array.dtype, gradient=gradient, all_of_them=bool(item.view.gates))
        size = math.prod(array.shape[front:]) if its_traits else 0
        mine = [_spread(x, axes, first + i) for x in _numbers([its_traits], size, array.shape[:front], np)[:-1]]
        found = mine if i == 0 else [join(a, b) for join, a, b in zip(_JOIN, found, mine)]
        moments.append(its_moments)
        traits.append(its_traits)
        # If examples take different branches, these are combined later, per example: see `Watch.record`.
        without = item.view.gates or _is_key(array) or not item.view.is_value
        cut.append({} if without else pictures_of_rows(array, loops, len(axes) - loops, item.path, LIMITS))
    statistics = [*found[:WHEN], when], moments, traits
    return _with(item, (statistics, cut) if item.view.is_value else statistics)


_JOIN = (np.add, np.add, np.minimum, np.maximum, np.add)  # how those of several arrays become one


def _spread(array: np.ndarray, axes: Sequence[Axis], index: int) -> np.ndarray:
    """Numbers with the axes added that an array does not vary over and was stored without."""
    for position, axis in enumerate(axes):
        if not axis.on_leaf(index):
            array = np.repeat(np.expand_dims(array, position), axis.size or 1, position)
    return array


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """The result of one run.

    Attributes:
        result: What the function returned; None if it failed.
        error: The exception it failed with; None if it did not.
        items: The recorded items, in program order; their leaves are the numbers that `tools.nonfinite` sorts.
        records: `(numbers, moments, traits)` of every gradient; for values, also the pictures of their arrays.
    """

    result: Any
    error: Exception | None
    items: tuple[Item, ...]
    records: Records


def watch(
    f: Callable, patterns: tuple[Pattern, ...], args: Any, kwargs: Any, *, grads: bool, inside: Any = None
) -> Watched:
    """Runs `f` and keeps what was recorded, even if `f` fails.

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
    # In sequence: rows are so small that threads would wait longer than they work.
    items = list(map(_reduced, _on_host(expand(handler.items))))
    records = make_records(items, handler.met, reduce=_reduce)
    numbers = []
    for item in items:
        whole = jax.tree.unflatten(item.tree, item.leaves)
        numbers.append(_with(item, whole[0][0] if item.view.is_value else whole[0]))
    return Watched(result, error, tuple(numbers), records)


def _on_host(items: list[Item]) -> list[Item]:
    """The items, with all small arrays on the host, copied in one transfer."""
    for item in items:
        if any(isinstance(x, _jax.Tracer) for x in item.arrays):
            raise CaptureError(
                f"examine must run on numbers, but {item.path!r} is being traced: call it outside jit, vmap and grad"
            )
    kept = [_keeps(item) for item in items]
    arrived = iter(to_host([[x for x in item.arrays if not _is_key(x)] for item, mine in zip(items, kept) if mine]))
    found = []
    for item, mine in zip(items, kept):
        rest = iter(next(arrived)) if mine else iter(())
        found.append(item.map_arrays(lambda x, rest=rest: x if _is_key(x) else next(rest)) if mine else item)
    return found


def _is_ours(error: Exception) -> bool:
    """Whether an exception was raised by the code that examines values, and not by the program.

    Endless recursion may fail in any frame, most often in ours, which are the innermost.
    """
    if isinstance(error, RecursionError):
        return False
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(
        frame.f_code in (_reduce.__code__, _whole.__code__, _alone.__code__, _reduced.__code__, pictures.__code__)
        for frame in frames
    )


def _with(item: Item, value: Any) -> Item:
    leaves, tree = jax.tree.flatten(value)
    return dataclasses.replace(item, leaves=leaves, tree=tree)
