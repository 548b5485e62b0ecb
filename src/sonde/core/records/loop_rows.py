"""Records of named loops: stacked, and row by row, as users address them.

The arrays of records stay stacked, with the axis of the loop. Which rows there are is static (`row_table`); a row
is cut out of them on demand (`Cut`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sonde import _jax
from sonde.core.interpret.items import Item
from sonde.core.marks.axes import Axis, Has, extra_has, leaf_has
from sonde.core.marks.named_loops import Row, row_path
from sonde.core.records.gradient_pairing import Call
from sonde.core.session.session import with_capture_state

# ---------------------------------------------------------------------------------------------------------------------
# When records are made: only the requested rows are kept, and gradients have the rows of their values
# ---------------------------------------------------------------------------------------------------------------------


def with_rows(call: Call) -> Call:
    """A call of a site in named loops, with the requested rows; any other call unchanged."""
    axes = call.item.view.axes
    if all(axis.rows is None for axis in axes):
        return call
    kept_rows = _kept(axes, call.item.view.rows)
    grads = {
        order: None if g is None else _cut(g, _aligned(g, call.item), kept_rows) for order, g in call.grads.items()
    }
    return Call(_cut(call.item, list(range(len(axes))), kept_rows), grads)


def _kept(axes: Sequence[Axis], rows: Sequence[Row] | None) -> dict[int, tuple[int, ...]]:
    """By position of a named axis, the numbers of the iterations that are kept."""
    named = [i for i, axis in enumerate(axes) if axis.rows is not None]
    if rows is None:
        return {i: tuple(axes[i].rows or ()) for i in named}
    return {i: tuple(sorted({row[k] for row in rows})) for k, i in enumerate(named)}


def _aligned(gradient: Item, value: Item) -> list[int | None]:
    """For each axis of a value, the axis of its gradient. Loops that run whole backward passes come before others."""
    loops = [i for i, axis in enumerate(gradient.view.axes) if axis.is_loop]
    of_value = [i for i, axis in enumerate(value.view.axes) if axis.is_loop]
    back = dict(zip(reversed(of_value), reversed(loops)))
    return [back.get(i) for i in range(len(value.view.axes))]


def _cut(item: Item, positions: Sequence[int | None], kept: dict[int, tuple[int, ...]]) -> Item:
    """An item with some rows of some axes, which are at these positions."""
    axes, arrays = list(item.view.axes), item.arrays
    for i, rows in kept.items():
        at = positions[i]
        if at is None:
            continue
        if axes[at].size != len(rows):
            arrays = [_take(x, np.asarray(rows), has, at) for x, has in zip(arrays, item.has)]
        axes[at] = dataclasses.replace(axes[at], size=len(rows), rows=rows)
    return dataclasses.replace(item.build(arrays), view=item.view.replace(axes=tuple(axes)))


def _take(array: Any, rows: np.ndarray, has: Has, at: int) -> Any:
    if not has[at] or array is None or isinstance(array, tuple):
        return array
    array, axis = jnp.asarray(array), sum(has[:at])
    first, end = int(rows[0]), int(rows[-1]) + 1
    if end - first == len(rows):  # `only_needed` in tools/execution looks for slices
        return lax.slice_in_dim(array, first, end, axis=axis)
    return jnp.take(array, rows, axis=axis)


# ---------------------------------------------------------------------------------------------------------------------
# When records are read
# ---------------------------------------------------------------------------------------------------------------------


class CallRow(NamedTuple):
    """A row of a call of a starred path.

    Attributes:
        path: The starred path, as the layout of the records has it.
        call: Which of the calls under it.
        at: Where the row is along each named axis.
        numbers: The numbers of the iterations.
    """

    path: str
    call: int
    at: Row
    numbers: Row


def row_table(layout: Sequence[tuple[str, tuple[Any, ...]]]) -> dict[str, list[CallRow]]:
    """The calls of every path, in the order of a Python loop.

    All sites of the first iteration, then all of the next. The rows of one named loop stand together; those of a later
    loop of the same name stand where that one is, if another site is between them.
    """
    row_calls: list[tuple[tuple[str, ...], Row, list[CallRow]]] = []
    for path, calls in layout:
        rows: dict[Row, list[CallRow]] = {}
        for number, call in enumerate(calls):
            for index, numbers in _rows(call.value.view):
                rows.setdefault(numbers, []).append(CallRow(path, number, index, numbers))
        row_calls += [(tuple(path.split("*/")), numbers, calls_of_row) for numbers, calls_of_row in rows.items()]
    return {row_path(calls[0].path, calls[0].numbers): calls for calls in _as_loops_run(row_calls)}


def _as_loops_run(row_calls: Sequence[tuple[tuple[str, ...], Row, list[CallRow]]]) -> Iterator[list[CallRow]]:
    """The calls of the rows in order; each with its path, split at the loops, and the numbers of the iterations."""
    for name, group in itertools.groupby(row_calls, lambda row: row[0][0] if row[1] else None):
        of_number: dict[int, list[Any]] = {}
        for parts, numbers, calls in group:
            if name is None:
                yield calls
            else:
                of_number.setdefault(numbers[0], []).append((parts[1:], numbers[1:], calls))
        for _, inner_rows in sorted(of_number.items()):
            yield from _as_loops_run(inner_rows)


def _rows(view: Any) -> Iterator[tuple[Row, Row]]:
    axes = [axis.rows for axis in view.axes if axis.rows is not None]
    for pairs in itertools.product(*map(enumerate, axes)):
        numbers = tuple(n for _, n in pairs)
        if view.has_row(numbers):
            yield tuple(i for i, _ in pairs), numbers


class Cut(Sequence[Any]):
    """The arrays of one row, cut out of stacked ones when the first is needed."""

    def __init__(self, cut: Callable[[], list[Any]], n: int) -> None:
        self._make = cut
        self._n = n
        self._made: list[Any] | None = None

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: Any) -> Any:
        made = self._made
        if made is None:
            made = self._make()
            if not any(isinstance(x, _jax.Tracer) for x in made):  # those are of the transform that asks
                self._made = made
        return tuple(made[index]) if isinstance(index, slice) else made[index]

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)


def cut_call(call: Any, arrays: Sequence[Any], index: Row) -> list[Any]:
    """The arrays of one row of a call."""
    value, extras, grads = call.parts(arrays)
    # A transform that the records crossed has put axes in front of all of them.
    skip = _ndim(value[0]) - call.value.ranks[0] if value else 0

    def of(spec: Any, grad_arrays: Sequence[Any]) -> list[Any]:
        if spec is None:
            return []
        axes, reduced = spec.view.axes, spec.reduced is not None
        return [_at(x, axes, leaf_has(axes, i, reduced=reduced), index, skip) for i, x in enumerate(grad_arrays)]

    axes = call.value.view.axes
    beside = [_at(x, axes, extra_has(axes, name), index, skip) for name, x in extras.items()]
    return [*of(call.value, value), *beside, *[x for spec, grad_arrays in grads for x in of(spec, grad_arrays)]]


def spec_of_row(call: Any) -> Any:
    """The static part of one row of a call."""

    def without(spec: Any) -> Any:
        if spec is None:
            return None
        named = [axis for axis in spec.view.axes if axis.rows is not None]
        axes = tuple(axis for axis in spec.view.axes if axis.rows is None)
        less = [sum(spec.reduced is not None or axis.on_leaf(i) for axis in named) for i in range(spec.n)]
        ranks = tuple(rank - n for rank, n in zip(spec.ranks, less))
        return dataclasses.replace(spec, view=spec.view.replace(axes=axes, rows=None), ranks=ranks)

    grads = tuple((order, without(spec)) for order, spec in call.grads)
    return dataclasses.replace(call, value=without(call.value), grads=grads)


def _at(array: Any, axes: Sequence[Axis], has: Has, index: Row, skip: int) -> Any:
    named = [i for i, axis in enumerate(axes) if axis.rows is not None]
    for at, row in reversed(list(zip(named, index))):
        if has[at]:
            array = _row(array, row, skip + sum(has[:at]))
    return array


def _row(array: Any, row: int, axis: int) -> Any:
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(array.shape[:axis] + array.shape[axis + 1 :], array.dtype)
    if isinstance(array, np.ndarray):
        return array[(slice(None),) * axis + (row,)]
    if isinstance(array, _jax.Tracer):
        return lax.index_in_dim(array, row, axis, keepdims=False)
    with with_capture_state(None):  # one program for all captures
        return _row_now(array, row, axis)


@functools.partial(jax.jit, static_argnums=2)
def _row_now(array: Any, row: Any, axis: int) -> Any:
    """One program for all rows: a number that is part of it would make one for each."""
    return lax.dynamic_index_in_dim(array, row, axis, keepdims=False)


def _ndim(array: Any) -> int:
    return len(array.shape) if hasattr(array, "shape") else 0
