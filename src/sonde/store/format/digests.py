"""Checksums of runs of rows: made as rows are written, verified as they are read.

A run is at most a chunk long. Its checksum is of the numbers, not of the file, so it also notices a file that is whole
but belongs elsewhere.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sonde import _extras
from sonde.store.format.manifest import ArrayInfo
from sonde.store.format.rows import Piece


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """Some rows of an array, or a part of each of them.

    Attributes:
        first: The first row.
        last: The row after the last.
        columns: For every axis of a row, the first element and the one after the last.
        crc: The CRC-32C of its bytes.
    """

    first: int
    last: int
    columns: tuple[tuple[int, int], ...]
    crc: int

    def fits(self, info: ArrayInfo) -> bool:
        """Whether it can be a run of this array."""
        whole = len(self.columns) == len(info.row) and all(last <= n for (_, last), n in zip(self.columns, info.row))
        return whole and self.last - self.first <= info.chunk_rows

    def is_in(self, data: np.ndarray, start: int) -> bool:
        """Whether rows, of which the first has the number `start`, hold what was written."""
        part = data[(slice(self.first - start, self.last - start), *(slice(*span) for span in self.columns))]
        return crc_of(part) == self.crc

    @property
    def row_size(self) -> int:
        """How many elements it has of each row."""
        return math.prod(high - low for low, high in self.columns)

    def to_json(self) -> list[Any]:
        """As plain lists."""
        return [self.first, self.last, self.crc, *self.columns]

    @classmethod
    def from_json(cls, data: Any) -> Run:
        """From plain lists."""
        first, last, crc, *columns = data
        spans = [(first, last), *columns]
        # A row may have no elements.
        if not all(type(n) is int for n in (crc, *(n for span in spans for n in span))) or first >= last:
            raise ValueError(f"a run is {data!r}")
        if not all(0 <= low <= high for low, high in spans):
            raise ValueError(f"a run is {data!r}")
        return cls(first, last, tuple((low, high) for low, high in columns), crc)


def crc_of(array: np.ndarray, before: int = 0) -> int:
    """The CRC-32C of the numbers of an array, continued from that of others.

    Processors have an instruction for it: it takes a third of the time of zlib's CRC-32.
    """
    return _crc32c().extend(before, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


@functools.cache
def _crc32c() -> Any:
    return _extras.load("google_crc32c", extra="store", purpose="A store of activations")


class Digester:
    """Makes the runs of an array from the pieces that are written to it.

    Args:
        chunk_rows: How many rows a chunk has.
    """

    def __init__(self, chunk_rows: int) -> None:
        self._chunk_rows = chunk_rows
        self._open: dict[tuple[tuple[int, int], ...], Run] = {}
        self._runs: list[Run] = []

    def add(self, piece: Piece) -> None:
        """Takes rows that are written."""
        columns = tuple((part.start, part.stop) for part in piece.columns)
        at = 0
        for first, last in piece.spans():
            for cut, end in _cut(first, last, self._chunk_rows):
                self._continue(columns, cut, end, piece.data[at : at + end - cut])
                at += end - cut

    def _continue(self, columns: tuple[tuple[int, int], ...], first: int, last: int, data: np.ndarray) -> None:
        before = self._open.pop(columns, None)
        if before is not None and (before.last != first or first % self._chunk_rows == 0):
            self._runs.append(before)
            before = None
        crc = crc_of(data, before.crc if before else 0)
        self._open[columns] = Run(before.first if before else first, last, columns, crc)

    def taken(self) -> list[Run]:
        """The runs so far; the next rows begin new ones."""
        runs = [*self._runs, *self._open.values()]
        self._runs, self._open = [], {}
        return runs


def _cut(first: int, last: int, step: int) -> Iterator[tuple[int, int]]:
    """A span of rows, cut where chunks begin."""
    while first < last:
        end = min(last, (first // step + 1) * step)
        yield first, end
        first = end


class Runs:
    """The runs of an array, to look up by rows."""

    def __init__(self, runs: Iterable[Run], n_rows: int) -> None:
        self._runs = sorted((run for run in runs if run.last <= n_rows), key=lambda run: run.first)
        self._firsts = [run.first for run in self._runs]
        self.size = sum((run.last - run.first) * run.row_size for run in self._runs)  # in elements
        self._longest = max((run.last - run.first for run in self._runs), default=0)

    def of(self, first: int, last: int) -> list[Run]:
        """The runs that have some of the rows from `first` to before `last`."""
        low = bisect.bisect_left(self._firsts, first - self._longest)
        high = bisect.bisect_left(self._firsts, last)
        return [run for run in self._runs[low:high] if run.last > first]
