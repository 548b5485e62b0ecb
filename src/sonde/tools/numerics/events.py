"""What the sites of a program saw, in the order of the run.

`Watching` is the handler: besides the result of a `reduce` function it records when a site ran, as numbers that come
out of the compiled program: the iteration of every surrounding loop, the line, and the call (by its token). `events_of`
sorts these events in the order of the run: forward before backward; in a loop, one iteration after the other. For a
`while_loop`, whose length is not known in advance, the first bad iteration is kept, or else the last.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import (
    Extra,
    Item,
    Pattern,
    Recording,
    Reduce,
    Site,
    View,
    extra_has,
    room_for_axes,
    row_path,
    with_capture_state,
)
from sonde.tools.execution.host_transfer import to_host
from sonde.tools.execution.program_order import ProgramOrder, numbered_calls
from sonde.tools.numerics.exponents import float_type

# The leaves that `numbers_of` returns. `Watching` fills in the last, an array whose last axis has: whether the site
# ran, its line, its token, and the number of the iteration of every surrounding loop.
NANS, INFS, LOW, HIGH, SIZE, WHEN = range(6)
_RAN, _LINE, _TOKEN, _LOOPS = range(4)


def numbers_of(value: Any) -> list[Any]:
    """How many NaNs and Infs, the finite range, the size, and room for when the site ran."""
    leaves = [x for x in jax.tree.leaves(value) if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)]
    nans, infs = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    dtype = float_type(*(x.dtype for x in leaves))
    low, high = jnp.full((), jnp.inf, dtype), jnp.full((), -jnp.inf, dtype)
    for x in leaves:
        size = jnp.abs(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x
        finite = jnp.isfinite(size)
        nans += jnp.sum(jnp.isnan(size), dtype=jnp.int32)
        infs += jnp.sum(jnp.isinf(size), dtype=jnp.int32)
        low = jnp.minimum(low, jnp.min(jnp.where(finite, size, jnp.inf), initial=jnp.inf).astype(dtype))
        high = jnp.maximum(high, jnp.max(jnp.where(finite, size, -jnp.inf), initial=-jnp.inf).astype(dtype))
    size = jnp.asarray(sum(x.size for x in leaves), jnp.int32)
    return [nans, infs, low, high, size, jnp.zeros((0,), jnp.int32)]


def first_bad(old: Sequence[Any], new: Sequence[Any], index: Any) -> list[Any]:
    """In a while loop: the first iteration that is not finite, or the last one in which the site ran."""
    del index  # it is known where the value was recorded
    keep = ((old[NANS] + old[INFS]) > 0) | (new[WHEN][..., _RAN] == 0)
    return [jnp.where(keep[..., None] if i == WHEN else keep, a, b) for i, (a, b) in enumerate(zip(old, new))]


class Watching(Recording):
    """Records the results of a `reduce` function for values and gradients, and when. No buffer is donated.

    Attributes:
        indices: The number of the iteration of each surrounding loop, outermost first.
    """

    counts_iterations = True
    tells_loops_apart = True
    # The leaf that says when the site ran; None if `when_it_was` finds it later.
    when: int | None = WHEN

    def __init__(
        self,
        patterns: tuple[Pattern, ...] = (),
        *,
        grads: bool = True,
        reduce: Reduce = numbers_of,
        fold: Any = first_bad,
        depth: int = 1,
    ) -> None:
        """`reduce` must return what `numbers_of` does, as its first leaves; `fold` must treat these as `first_bad`."""
        super().__init__(patterns, grads=grads, reduce=reduce, fold=fold, donates=False, depth=depth)
        self.key = ("watching", self.key)
        self.indices: tuple[Any, ...] = ()

    def child(self, base: Any = 1, steps: Sequence[Any] = (), prefix: str | None = None) -> Self:
        """The handler inside; in a loop, it knows the number of the iteration."""
        new = super().child(base, steps, prefix)
        if steps:
            new.indices = (*self.indices, *steps)
            # What was rewritten outside of loops, for the same jitted function, does not record these numbers.
            new.key = None if self.key is None else (self.key, "loops", len(new.indices))
        return new

    def carried(self) -> list[Any]:
        """The numbers of the iterations go with the handler."""
        return [*super().carried(), *self.indices]

    def carrying(self, values: Sequence[Any]) -> Self:
        """A handler with other numbers of iterations."""
        n = len(values) - len(self.indices)
        new = super().carrying(values[:n])
        new.indices = tuple(values[n:])
        return new

    def record(self, arrays: list[Any], site: Site, path: str, view: View, extras: dict[Extra, Any]) -> None:
        """Adds to the recorded leaves when the site ran."""
        before = len(self.items)
        super().record(arrays, site, path, view, extras)
        if len(self.items) == before:
            return
        item: Any = self.items[-1]
        if self.when is not None:
            item.leaves[self.when] = self._when(item.leaves[NANS], site, view, extras)

    def _when(self, like: Any, site: Site, view: View, extras: dict[Extra, Any]) -> Any:
        """When the site ran, with the axes over examples and over a mesh that the item's numbers have."""
        with with_capture_state(None):
            ran, token = (
                room_for_axes(jnp.asarray(extras[name]), extra_has(view.axes, name)) if name in extras else default
                for name, default in (("taken", 1), ("token", 0))
            )
            row = [ran, _line(site), token, *self.indices]
            # The sum gives each number the axes that the others have.
            return jnp.stack([jnp.zeros_like(like) + jnp.asarray(x, jnp.int32) for x in row], -1)


def when_it_was(item: Item, lead: tuple[int, ...]) -> np.ndarray:
    """When an item was recorded, in the form that `Watching` uses, found after the program has ended.

    Args:
        item: An item that is in no branch, and in no loop but scans; on the host.
        lead: The lengths of all its axes.
    """
    axes = item.view.axes
    row: list[Any] = [1, _line(item.site)]
    token = np.asarray(item.extras.get("token", 0))
    has = extra_has(axes, "token") if token.ndim else [False] * len(axes)
    # A token has an axis for every axis of a mesh, also for those over which the item does not vary.
    loops = sum(mine for mine, axis in zip(has, axes) if axis.is_loop)
    token = token.max(tuple(range(loops, loops + token.ndim - sum(has))))
    row.append(np.expand_dims(token, [i for i, mine in enumerate(has) if not mine]))
    for i, axis in enumerate(axes):
        if axis.is_loop:
            # The rows of a value are in the order in which they were computed; the rows of a gradient are where the
            # backward loop stored them.
            numbers = np.arange(lead[i])[:: -1 if axis.reverse and not item.view.is_value else 1]
            row.append(numbers.reshape([-1 if i == j else 1 for j in range(len(axes))]))
    return np.stack([np.broadcast_to(np.asarray(x, np.int32), lead) for x in row], -1)


def _line(site: Site) -> int:
    """A number that stands for a line of the user's code; the same in every process, as compiled programs are kept."""
    return zlib.crc32(site.source.encode()) & 0x7FFFFFFF


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """The finite values at a site, at one call and iteration.

    Attributes:
        path: The path of the site.
        gradient: Whether these are gradients.
        call: Which of the calls under that path, from 0.
        iteration: The number of the iteration of each loop around it, outermost first.
        low: The smallest value.
        high: The largest value.
    """

    path: str
    gradient: bool
    call: int
    iteration: tuple[int, ...]
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """What was seen at a site at one call and iteration. The fields are those of `NonFinite`, and what it sorts by."""

    path: str
    order: tuple[tuple[int, int], ...]
    item: Item
    call: int
    iteration: tuple[int, ...]
    example: tuple[int, ...]
    source: str
    nans: int
    infs: int
    low: float
    high: float
    size: int

    @property
    def range(self) -> Range:
        """The finite part."""
        return Range(self.path, not self.item.view.is_value, self.call, self.iteration, self.low, self.high)


def events_of(items: Sequence[Item]) -> list[Event]:
    """Every site at every iteration, in program order. The leaves of the items come from `numbers_of`."""
    arrays = to_host([item.leaves for item in items])
    program = ProgramOrder(items)
    events: list[Event] = []
    calls = _Calls(items, arrays)
    for position, (item, leaves) in enumerate(zip(items, arrays)):
        for moment in _moments(item, leaves):
            path, call, value = calls.of(item, moment.token)
            path, row, iteration = _row(path, value, _iteration(item, value, moment.numbers))
            if row and not value.view.has_row(row):  # no pattern matches it
                continue
            events.append(
                Event(
                    path,
                    program.key(position, item.loops, moment.numbers),
                    item,
                    call,
                    iteration,
                    moment.example,
                    next((s.source for s in item.sites if _line(s) == moment.line), item.site.source),
                    *moment.counts,
                )
            )
    return sorted(events, key=lambda event: event.order)


class _Moment(NamedTuple):
    """One iteration: the numbers of all loops, when the site ran, and the figures of all examples together."""

    numbers: tuple[int, ...]
    line: int
    token: int
    example: tuple[int, ...]
    counts: tuple[int, int, float, float, int]


def _moments(item: Item, leaves: Sequence[np.ndarray]) -> Iterator[_Moment]:
    """The iterations in which the site of an item ran. Examples may have reached the site at different times."""
    when = leaves[WHEN].reshape(-1, leaves[WHEN].shape[-1])
    lead = leaves[NANS].shape
    ran = np.flatnonzero(when[:, _RAN])
    if not ran.size:
        return
    keys, group = np.unique(when[ran][:, _LINE:], axis=0, return_inverse=True)
    flat = [np.broadcast_to(leaf, lead).reshape(-1)[ran] for leaf in leaves[:WHEN]]
    bad = (flat[NANS] + flat[INFS]) > 0
    loops = sum(axis.is_loop for axis in item.view.axes)
    for number, key in enumerate(keys):
        mine = group.reshape(-1) == number
        struck = np.flatnonzero(mine & bad)
        example = np.unravel_index(ran[struck[0]], lead)[loops:] if struck.size and lead else ()
        counts = (
            int(flat[NANS][mine].sum()),
            int(flat[INFS][mine].sum()),
            float(flat[LOW][mine].min()),
            float(flat[HIGH][mine].max()),
            int(flat[SIZE][mine].sum()),
        )
        line, token, *numbers = key.tolist()
        yield _Moment(tuple(numbers), line, token, tuple(map(int, example)), counts)


class _Calls:
    """The values by path and call, to find the value that a gradient belongs to."""

    def __init__(self, items: Sequence[Item], arrays: Sequence[Sequence[np.ndarray]]) -> None:
        self._of_item: dict[int, int] = {}
        self._of_site: dict[Site, list[tuple[Item, set[int]]]] = {}
        for call in numbered_calls(items):
            for position in call.positions:
                item, when = items[position], arrays[position][WHEN]
                self._of_item[id(item)] = call.number
                tokens = set(when[..., _TOKEN][when[..., _RAN] > 0].tolist())
                for site in item.sites:
                    self._of_site.setdefault(site, []).append((item, tokens))

    def of(self, item: Item, token: int) -> tuple[str, int, Item]:
        """Path and number of the call that an item belongs to, and its value."""
        if item.view.is_value:
            return item.path, self._of_item[id(item)], item
        values = [value for site in item.sites for value in self._of_site.get(site, ())]
        mine = [value for value, tokens in values if token in tokens] or [value for value, _ in values]
        if not mine:  # the value was computed before the capture began
            return item.path, 0, item
        return mine[0].path, self._of_item[id(mine[0])], mine[0]


def _row(path: str, value: Item, iteration: tuple[int, ...]) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The path with the numbers of the loops that have a name, these numbers, and those of the other loops."""
    named = {id(axis.loop) for axis in value.view.axes if axis.rows is not None}
    if not named:
        return path, (), iteration
    further = len(iteration) - len(value.loops)  # loops that run whole backward passes
    is_named = [False] * further + [id(loop) in named for loop in value.loops]
    rows = tuple(n for n, mine in zip(iteration, is_named) if mine)
    return row_path(path, rows), rows, tuple(n for n, mine in zip(iteration, is_named) if not mine)


def _iteration(item: Item, value: Item, numbers: tuple[int, ...]) -> tuple[int, ...]:
    """The iteration of the value that a gradient belongs to; loops run backward for gradients."""
    if item is value:
        return numbers
    shared = 0
    for a, b in zip(item.loops, value.loops):
        if a is not b:
            break
        shared += 1
    # The remaining loops of the value were transposed; loops in front of those run whole backward passes.
    first_back = max(shared, len(item.loops) - (len(value.loops) - shared))
    lengths = {id(axis.loop): axis.size for axis in item.view.axes if axis.is_loop}
    return tuple(
        int(lengths[id(loop)] or 0) - 1 - number if i >= first_back else number
        for i, (loop, number) in enumerate(zip(item.loops, numbers))
    )
