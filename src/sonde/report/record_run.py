"""The one pass over a program: at every site, statistics, traits and pictures.

Large arrays are reduced on the device, inside compiled steps. Small ones are kept until the program is over, and then
reduced on the host (`tools/execution/deferred_reduce.py`). If the program fails, what was seen before is kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from sonde import _jax
from sonde.core import (
    Extra,
    InsideRequest,
    Item,
    Pattern,
    Records,
    Where,
    arrays_in,
    expand,
    make_records,
    run_with,
    with_capture_state,
)
from sonde.errors import CaptureError, NoSuchSiteError
from sonde.report.slices import LIMITS, LIMITS_IN_LOOPS, pictures, pictures_of_rows
from sonde.report.traits import traits_of_parts, traits_of_rows
from sonde.tools.execution.deferred_reduce import KeepingSmall
from sonde.tools.execution.host_transfer import to_host
from sonde.tools.numerics.array_statistics import moments_of_parts, moments_of_rows
from sonde.tools.numerics.exponents import HostRows


@jax.jit
def _seen(value: list[Any]) -> tuple[Any, Any]:
    return moments_of_parts(value), traits_of_parts(value)


def _reduce(value: Any) -> tuple[Any, Any]:
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


class _Kept(NamedTuple):
    """The arrays of a site themselves, to be reduced when the program is over."""

    arrays: list[Any]


def _whole(value: Any) -> _Kept:
    return _Kept(arrays_in(value))


class Watch(KeepingSmall):
    """Records statistics and traits of values and gradients, and pictures of values."""

    reduced_have_all_axes = False  # an array that is the same on all devices counts once

    def __init__(self, patterns: tuple[Pattern, ...], *, grads: bool) -> None:
        super().__init__(patterns, grads=grads, large=_reduce, small=_whole, donates=False)
        self.key = ("watch", self.key)

    def record(self, arrays: list[Any], where: Where, extras: dict[Extra, Any]) -> None:
        """Adds pictures to what is recorded."""
        before, view = len(self.items), where.view
        super().record(arrays, where, extras)
        if len(self.items) == before or not view.is_value or self.reduce is not self.large:
            return
        item = self.items[-1]
        assert isinstance(item, Item)
        # If examples leave a loop at different times, the engine selects whole arrays per example: a picture has no
        # axis of examples to select by.
        apart = view.gates or (where.loops and view.axes)
        mapped = [sum(axis.on_leaf(i) for axis in view.axes) for i in range(len(arrays))]
        with with_capture_state(None), _own_settings():
            limits = LIMITS_IN_LOOPS if where.loops else LIMITS
            cut = [{} if apart else pictures(x, n, where.path, limits) for x, n in zip(arrays, mapped)]
        item.leaves, item.tree = jax.tree.flatten((jax.tree.unflatten(item.tree, item.leaves), cut))


def _keeps(item: Item) -> bool:
    """Whether an item has whole arrays, and not what `Watch.record` makes of large ones."""
    return isinstance(jax.tree.unflatten(item.tree, item.leaves), _Kept)


def _is_key(x: Any) -> bool:
    return hasattr(x, "dtype") and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)


def _reduced(item: Item) -> Item:
    """Reduces an item whose arrays were kept whole, and are on the host, to what `Watch.record` records."""
    if not _keeps(item):
        return item
    arrays = jax.tree.unflatten(item.tree, item.leaves).arrays
    # An array has an axis of devices only if it varies over them; axes of examples and loops are always there.
    axes = [axis if axis.kind == "mesh" else dataclasses.replace(axis, leaves=None) for axis in item.view.axes]
    loops = sum(axis.is_loop for axis in axes)
    moments, traits, cut = [], [], []
    for i, array in enumerate(arrays):
        front = sum(axis.on_leaf(i) for axis in axes)
        its_moments, its_traits = {}, {}
        if not _is_key(array):
            rows, gradient = HostRows.of(array, front), not item.view.is_value
            its_moments = moments_of_rows(rows)
            # The records of branches are combined later, and must have the same form.
            its_traits = traits_of_rows(rows, array.dtype, gradient=gradient, all_of_them=bool(item.view.gates))
        moments.append(its_moments)
        traits.append(its_traits)
        # If examples take different branches, these are combined later, per example: see `Watch.record`.
        without = item.view.gates or _is_key(array) or not item.view.is_value
        cut.append({} if without else pictures_of_rows(array, loops, len(axes) - loops, item.path, LIMITS))
    statistics = moments, traits
    return _with(item, (statistics, cut) if item.view.is_value else statistics)


@dataclasses.dataclass(frozen=True, slots=True)
class Watched:
    """The result of one run.

    Attributes:
        result: What the function returned; None if it failed.
        error: The exception it failed with; None if it did not.
        last_site: The path of the last site that was reached; empty if none was.
        records: `(moments, traits)` of every gradient; for values, also the pictures of their arrays.
    """

    result: Any
    error: Exception | None
    last_site: str
    records: Records


def watch(
    f: Callable,
    patterns: tuple[Pattern, ...],
    args: Any,
    kwargs: Any,
    *,
    grads: bool,
    inside: InsideRequest | None = None,
) -> Watched:
    """Runs `f` and keeps what was recorded, even if `f` fails.

    Raises:
        NoSuchSiteError: A pattern matches no site.
        CaptureError: A site cannot be captured.
    """
    handler = Watch(patterns, grads=grads)
    result, error = None, None
    try:
        result = run_with(handler, f, args, kwargs, grads=grads, inside=inside)
    except (CaptureError, NoSuchSiteError):
        raise
    except Exception as failure:
        if _is_ours(failure):
            raise
        error = failure
    # In sequence: rows are so small that threads would wait longer than they work.
    items = list(map(_reduced, _on_host(expand(handler.items))))
    records = make_records(items, handler.met, reduce=_reduce)
    return Watched(result, error, items[-1].path if items else "", records)


def _on_host(items: list[Item]) -> list[Item]:
    """The items, with all small arrays on the host, copied in one transfer."""
    for item in items:
        if any(isinstance(x, _jax.Tracer) for x in item.arrays):
            raise CaptureError(
                f"examine must run on numbers, but {item.path!r} is being traced: call it outside jit, vmap and grad"
            )
    chosen = [_keeps(item) for item in items]
    to_fetch = [item for item, is_chosen in zip(items, chosen) if is_chosen]
    arrived = iter(to_host([[x for x in item.arrays if not _is_key(x)] for item in to_fetch]))
    fetched = []
    for item, is_chosen in zip(items, chosen):
        arrays = iter(next(arrived)) if is_chosen else iter(())
        fetched.append(
            item.map_arrays(lambda x, arrays=arrays: x if _is_key(x) else next(arrays)) if is_chosen else item
        )
    return fetched


def _is_ours(error: Exception) -> bool:
    """Whether an exception was raised by the code that examines values, and not by the program.

    Endless recursion may fail in any frame, most often in ours, which are the innermost.
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
