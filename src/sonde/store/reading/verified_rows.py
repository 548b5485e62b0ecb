"""The one place where rows of a store are read: every run of rows is compared with its checksum."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sonde.errors import StoreError
from sonde.store.format.digests import Run
from sonde.store.format.folder import Folder, tensorstore
from sonde.store.format.manifest import ArrayInfo
from sonde.store.format.progress import Listed
from sonde.store.format.row_files import RowFiles
from sonde.store.format.zarr_arrays import READ_CACHE, dtype_of, open_array

AT_A_TIME = 1 << 26  # bytes that are read from a bucket before the first of them are used
IN_CACHE = 1 << 20  # bytes that are read from a disk at a time, and are still in the processor's cache to be verified


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """Rows that are read together.

    Attributes:
        first: The first row.
        last: The row after the last.
        low: The first row that is read, to verify the runs of the others.
        runs: The runs that have some of the rows.
        rows: The rows that are read, or what TensorStore promises.
    """

    first: int
    last: int
    low: int
    runs: Sequence[Run]
    rows: Any


class RowReader:
    """Reads rows of an array.

    Args:
        folder: The store.
        info: The array.
        listed: What the store lists.
        number: The place of the array in the manifest.
        verify: Whether to compare checksums.
        cache: The size of TensorStore's cache in bytes.
    """

    def __init__(
        self, folder: Folder, info: ArrayInfo, listed: Listed, number: int, *, verify: bool, cache: int = READ_CACHE
    ) -> None:
        self._folder, self._info, self._listed, self._number = folder, info, listed, number
        self._verify, self._cache = verify, cache
        self._array: Any = None
        self._files = RowFiles(info)
        self._ahead = AT_A_TIME if folder.local_path is None else 0
        self._row_bytes = max(1, dtype_of(info).itemsize * math.prod(info.row))

    def blocks(
        self, spans: Sequence[tuple[int, int]], into: np.ndarray | None = None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """The rows of spans, each from a first to before a last: in parts, with the number of the first row of each.

        Args:
            spans: The spans.
            into: Where the rows may be put, one after the other, to save a copy; they need not be.

        Raises:
            StoreError: They cannot be read, or are not what was written.
        """
        waiting: collections.deque[_Part] = collections.deque()
        held, before = 0, 0
        for first, last in self._parts(spans):
            runs = self._listed.runs(self._number).of(first, last) if self._verify else []
            # All of a run is read, or it could not be verified.
            low = min((run.first for run in runs), default=first)
            high = max((run.last for run in runs), default=last)
            whole = into[before : before + last - first] if into is not None and (low, high) == (first, last) else None
            before += last - first
            waiting.append(_Part(first, last, low, runs, self._read(low, high, whole)))
            held += (high - low) * self._row_bytes
            while held > self._ahead:
                part = waiting.popleft()
                data = self._checked(part)
                held -= len(data) * self._row_bytes
                yield part.first, data[part.first - part.low : part.last - part.low]
        for part in waiting:
            yield part.first, self._checked(part)[part.first - part.low : part.last - part.low]

    def _read(self, first: int, last: int, into: np.ndarray | None) -> Any:
        """Rows, or what TensorStore promises."""
        local = self._folder.local_path
        if local is None:
            return self._opened()[first:last].read()
        if into is None:
            into = np.empty((last - first, *self._info.row), dtype_of(self._info))
        try:
            self._files.read(local, first, last, into)
        except (OSError, ValueError) as error:
            raise self._folder.damaged(self._info.name, error) from error
        return into

    def _parts(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The spans, cut into parts of whole chunks, or whole objects of a bucket, that are not too large."""
        local = self._folder.local_path is not None
        rows, nbytes = (self._info.chunk_rows, IN_CACHE) if local else (self._info.file[0], AT_A_TIME // 4)
        step = max(1, nbytes // (rows * self._row_bytes)) * rows
        for first, last in spans:
            while first < last:
                end = min(last, (first // step + 1) * step)
                yield first, end
                first = end

    def _checked(self, part: _Part) -> np.ndarray:
        """The rows of a part and of its runs, when they are there and are what was written."""
        try:
            data = part.rows if isinstance(part.rows, np.ndarray) else self._folder.wait(part.rows, AT_A_TIME)
        except Exception as error:
            raise self._folder.damaged(self._info.name, error) from error
        if not self._verify:
            return data
        verified = 0
        for run in part.runs:
            if not run.is_in(data, part.low):
                raise self._wrong(run.first, run.last, "are not what was written")
            verified += (min(run.last, part.last) - max(run.first, part.first)) * run.row_size
        if verified != (part.last - part.first) * math.prod(self._info.row):
            raise self._wrong(part.first, part.last, "have no checksum")
        return data

    def _wrong(self, first: int, last: int, why: str) -> StoreError:
        return self._folder.damaged(self._info.name, ValueError(f"rows {first} to {last - 1} {why}"))

    def _opened(self) -> Any:
        tensorstore()  # raises an error in a fork
        if self._array is None:
            rows = self._listed.rows[self._number]
            try:
                self._array = open_array(self._folder, self._info, rows, cache=self._cache)
            except Exception as error:
                raise self._folder.damaged(self._info.name, error) from error
        return self._array


class JoinedRows:
    """The rows of one array in several stores, one after the other."""

    def __init__(self, readers: Sequence[RowReader], counts: Sequence[int]) -> None:
        self._readers = readers
        self._ends = np.cumsum([0, *counts]).tolist()

    def blocks(
        self, spans: Sequence[tuple[int, int]], into: np.ndarray | None = None
    ) -> Iterator[tuple[int, np.ndarray]]:
        """As those of a `RowReader`."""
        before = 0
        for first, last in spans:
            number = bisect.bisect_right(self._ends, first) - 1
            while number < len(self._readers) and self._ends[number] < last:
                start, end = self._ends[number : number + 2]
                span = max(first, start) - start, min(last, end) - start
                place = None if into is None else into[before : before + span[1] - span[0]]
                before += span[1] - span[0]
                for row, data in self._readers[number].blocks([span], place):
                    yield start + row, data
                number += 1
