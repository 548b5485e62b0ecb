"""The rows of a store that a batch becomes, and the part of them that this process has.

Rows are the elements along the first axis of a value, in the order of the batches; a value without axes is one row.
With a mask, rows are the elements that it keeps, over all the axes that it has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Piece:
    """Some rows, or parts of rows, of an array.

    Attributes:
        rows: Where they go: a slice, or the number of each row.
        columns: Which part of a row, per axis.
        data: Their contents.
    """

    rows: slice | np.ndarray
    columns: tuple[slice, ...]
    data: np.ndarray

    def spans(self) -> Iterator[tuple[int, int]]:
        """Rows that follow one another: the first, and the one after the last."""
        if isinstance(self.rows, slice):
            yield self.rows.start, self.rows.stop
            return
        for part in np.split(self.rows, np.flatnonzero(np.diff(self.rows) != 1) + 1):
            yield int(part[0]), int(part[-1]) + 1


def row_shape(array: Any, mask: Any) -> tuple[int, ...]:
    """The shape of a row of a value."""
    return tuple(array.shape[1 if mask is None else mask.ndim :])


def count(array: Any, mask: np.ndarray | None) -> int:
    """How many rows a value becomes."""
    if mask is not None:
        return int(mask.sum())
    return array.shape[0] if array.ndim else 1


def pieces(array: Any, mask: np.ndarray | None, start: int) -> Iterator[Piece]:
    """The parts of a value that this process writes, with rows from `start` on. Only one process writes copies."""
    for shard in array.addressable_shards:
        if shard.replica_id:
            continue
        data = np.asarray(shard.data)
        index = tuple(slice(*s.indices(n)[:2]) for s, n in zip(shard.index, array.shape))
        if not array.ndim:
            yield Piece(slice(start, start + 1), (), data[None])
        elif mask is None:
            yield Piece(slice(start + index[0].start, start + index[0].stop), index[1:], data)
        else:
            kept = mask[index[: mask.ndim]]
            before = np.cumsum(mask.reshape(-1)).reshape(mask.shape)  # counts itself too
            numbers = start + before[index[: mask.ndim]][kept] - 1
            if len(numbers):
                yield Piece(_as_slice(numbers), index[mask.ndim :], data[kept])


def _as_slice(numbers: np.ndarray) -> slice | np.ndarray:
    first, last = int(numbers[0]), int(numbers[-1])
    return slice(first, last + 1) if last - first + 1 == len(numbers) else numbers


def rows_at_a_time(array: Any) -> int:
    """How many rows of a batch follow one another on this process: files of a store are sized accordingly."""
    if not array.ndim:
        return 1
    spans = {(s.index[0].indices(array.shape[0])[:2]) for s in array.addressable_shards}
    merged: list[list[int]] = []
    for low, high in sorted(spans):
        if merged and low <= merged[-1][1]:
            merged[-1][1] = max(high, merged[-1][1])
        else:
            merged.append([low, high])
    return min(high - low for low, high in merged)


def columns_at_a_time(array: Any, mask: Any) -> tuple[int, ...]:
    """How much of a row one device has, per axis."""
    return tuple(array.sharding.shard_shape(array.shape)[1 if mask is None else mask.ndim :])
