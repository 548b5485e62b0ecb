"""Reads records one value at a time, for the tools that look at numbers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core import (
    LEAF,
    ArraysSpec,
    Axis,
    CallRow,
    Pattern,
    Record,
    RecordLayout,
    Records,
    Site,
    arrays_in,
    glob_matches,
    matches,
)
from sonde.errors import CaptureError
from sonde.tools.execution.host_transfer import to_host


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A value or gradient that a capture recorded.

    Attributes:
        path: The path of the site.
        call: Which of the calls under that path, from 0.
        gradient: Whether this is a gradient.
        value: The value, or what a `reduce` function made of it.
        axes: The axes in front: loops, outermost first, then mapped ones.
        types: Shape and dtype of the site's arrays, without the axes of loops.
        taken: Whether the branch with the site was taken; None if the site is in no branch.
        count: How many times the `while_loop` around the site ran; None where there is none.
        site: The site.
        row: Where the value is in `Records.stacked`, if it is a row of a named loop.
        rows: For a value with the axes of named loops, the rows that were recorded; None if all were.
    """

    path: str
    call: int
    gradient: bool
    value: Any
    axes: tuple[Axis, ...]
    types: tuple[Any, ...]
    taken: Any
    count: Any
    site: Site
    row: CallRow | None = None
    rows: tuple[tuple[int, ...], ...] | None = None

    @property
    def loops(self) -> int:
        """How many of the axes are loops."""
        return sum(axis.is_loop for axis in self.axes)

    @property
    def place(self) -> tuple[tuple[str, int], tuple[int, ...]]:
        """Where a rule meets it: path and call, with a `*` in the path for each named loop; and the row."""
        if self.row is None:
            return (self.path, self.call), ()
        return (self.row.path, self.row.call), tuple(self.row.numbers)

    @property
    def row_numbers(self) -> list[tuple[int, ...]]:
        """For a value with the axes of named loops: the rows along them, in the order of the value."""
        return list(itertools.product(*(axis.rows or () for axis in self.axes if axis.is_loop)))

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the site's arrays inside the pytree that was sown; `""` if it was an array."""
        if self.site.tree is LEAF:
            return ("",)
        whole = self.site.rebuild([_Part() for _ in self.types])
        leaves = jax.tree_util.tree_flatten_with_path(whole)[0]
        return tuple(
            jax.tree_util.keystr(keys, simple=True, separator="/") for keys, x in leaves if isinstance(x, _Part)
        )

    def numbers(self) -> Iterator[tuple[str, Any, Any]]:
        """For every array that has numbers: its name, its type, and the result of `reduce` for it.

        Random keys have no numbers, and integers no gradient.
        """
        for part, kind, made in zip(self.parts, self.types, self.value):
            if made and (not self.gradient or jnp.issubdtype(kind.dtype, jnp.inexact)):
                yield part, kind, made

    def steps(self, loops: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], np.ndarray | None]]:
        """Every iteration that ran.

        Args:
            loops: The lengths of the loops in front of the arrays of the value.

        Yields:
            The index into those arrays, the number of the iteration of each loop (the last, for a `while_loop`), and
                which of the examples took the branch with the site, None if it is in no branch.
        """
        taken = None if self.taken is None else np.asarray(self.taken)
        count = None if self.count is None else np.asarray(self.count)
        for index in np.ndindex(loops):
            here = None if taken is None else taken[index[: taken.ndim]]
            last = () if count is None else (int(np.max(count[index[: count.ndim]])) - 1,)
            if (here is None or np.any(here)) and last != (-1,):
                yield index, (*index, *last), here


class _Part:
    """Stands for an array."""


def each_seen(records: Records, *, stacked: bool = False) -> Iterator[Seen]:
    """Every value of every record, each followed by its gradient if it has one.

    Args:
        records: The records.
        stacked: Whether named loops stay one value, with a `*` in the path.
    """
    for path, record in (records.stacked if stacked else records).items():
        rows = [None] * len(list(record.calls())) if stacked or path in records.stacked else records.rows(path)
        calls = [call for call, _ in record.calls()]
        rest = zip(record.values, record.taken, record.counts)
        grads = record.grads or (None,) * len(calls)
        for number, (call, gradient, row) in enumerate(zip(calls, grads, rows)):
            axes, taken, count, kept = call.value.view.axes, None, None, call.value.view.rows
            if call.value.view.is_value:
                value, taken, count = next(rest)
                yield Seen(path, number, False, value, axes, call.types, taken, count, call.site, row, kept)
                if call.grads and call.grads[0][1] is not None:
                    axes = call.grads[0][1].view.axes
            if gradient is not None:
                yield Seen(path, number, True, gradient, axes, call.types, taken, count, call.site, row, kept)


def with_values(records: Records, values: Mapping[str, Sequence[Any]]) -> Records:
    """Records with other values of the same shapes; without gradients, flags and counts.

    Args:
        records: The records.
        values: By path of `Records.stacked`, a value for each call, like the one in the record.
    """
    layout, arrays = [], []
    for path, record in records.stacked.items():
        specs = []
        calls = [call for call, _ in record.calls() if call.value.view.is_value]
        for call, value in zip(calls, values[path]):
            leaves = arrays_in(value)
            axes = tuple(dataclasses.replace(axis, leaves=None) for axis in call.value.view.axes)
            spec = ArraysSpec(call.value.view.replace(axes=axes), tuple(map(jnp.ndim, leaves)), None)
            specs.append(dataclasses.replace(call, value=spec, extras=(), grads=()))
            arrays += leaves
        layout.append((path, tuple(specs)))
    return Records.of_layout(RecordLayout(layout), arrays)


def chooses(pattern: Pattern, record: Record) -> bool:
    """Whether a pattern chooses a record."""
    if isinstance(pattern, str):
        return glob_matches(pattern, record.path)
    return any(matches(pattern, site.at(record.path)) for site in record.sites)


def check_numbers(tree: Any, verb: str) -> None:
    """Raises CaptureError if a pytree is being traced, so that there are no numbers; `verb` needs them."""
    if any(isinstance(x, _jax.Tracer) for x in jax.tree.leaves(tree)):
        raise CaptureError(
            f"{verb} must run on numbers, but its values are being traced: call it outside jit, vmap and grad"
        )


def on_host(tree: Any, verb: str) -> Any:
    """A pytree with NumPy arrays. Raises CaptureError if there are no numbers."""
    check_numbers(tree, verb)
    return to_host(tree)
