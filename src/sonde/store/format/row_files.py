"""Where the rows of an array are in its files, and how they get there.

A file (a shard, in Zarr's words) is an index of fixed length, and then rows, one after the other. They are not
compressed: the low bits of activations are noise, and less than a tenth would be saved. So the place of every row is
known before it is written. On a disk, rows go into the files as they are computed, and are read straight into the
memory of the reader; nothing is held back, however many arrays there are. An object in a bucket is written as a whole,
so rows for it wait in a temporary file.

Rows after those that the store lists may be there and have no meaning. The index lists all chunks of the file, also
those that are not there yet: readers look no further than the number of rows.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import dataclasses
import io
import itertools
import math
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from sonde.store.format.digests import crc_of
from sonde.store.format.folder import Folder
from sonde.store.format.manifest import ArrayInfo
from sonde.store.format.rows import Piece
from sonde.store.format.zarr_arrays import dtype_of

COPIES = 4  # of an object that is sent: as it was, with new rows, as bytes, as TensorStore holds it
_ALIGNMENT = 64
_AT_ONCE = 8  # files that are synced or sent at a time, at most
Span = tuple[int, int]


class RowFiles:
    """The files of an array.

    Attributes:
        info: The array.
        start: Where the first row of a file begins.
        head: What comes before it: the index.
    """

    def __init__(self, info: ArrayInfo) -> None:
        self.info = info
        self._itemsize = dtype_of(info).itemsize
        self._whole_row = [(0, n) for n in info.row]
        self._row_bytes = self._itemsize * math.prod(info.file[1:])
        n_chunks, chunk = info.file[0] // info.chunk_rows, info.chunk_rows * self._row_bytes
        self.start = -(-(16 * n_chunks + 4) // _ALIGNMENT) * _ALIGNMENT
        index = np.array([(self.start + i * chunk, chunk) for i in range(n_chunks)], "<u8")
        self.head = (index.tobytes() + struct.pack("<I", crc_of(index))).ljust(self.start, b"\0")

    def size(self, n_rows: int) -> int:
        """How long a file is that holds so many rows: it ends with a whole chunk."""
        return self.start + -(-n_rows // self.info.chunk_rows) * self.info.chunk_rows * self._row_bytes

    def end_of(self, n_rows: int) -> int:
        """Where so many rows end."""
        return self.start + n_rows * self._row_bytes

    def odd_frames(self, folder: Path, n_rows: int, *, finished: bool) -> Iterator[tuple[str, str, Span]]:
        """The files on a disk that other programs cannot read: their names, why, and the rows in them."""
        for name, span in self.names(0, n_rows):
            try:
                with _opened(folder, name) as descriptor:
                    if os.pread(descriptor, self.start, 0) != self.head:
                        yield name, "has another index", span
                    elif finished and os.fstat(descriptor).st_size < self.size(span[1] - span[0]):
                        yield name, "does not end with a whole chunk", span
            except (OSError, ValueError):
                pass  # that its rows cannot be read is found where they are read

    def names(self, first: int, last: int) -> Iterator[tuple[str, Span]]:
        """The files with rows from `first` to before `last`, and which of these rows are in each."""
        for name, _, (part, *_) in self.parts((first, last), self._whole_row):
            yield name, (first + part.start, first + part.stop)

    def parts(self, rows: Span, columns: Sequence[Span]) -> Iterator[tuple[str, tuple[Span, ...], tuple[slice, ...]]]:
        """Some columns of some rows, file by file: its name, their place in it, and which part of them it is."""
        spans, sizes = (rows, *columns), self.info.file
        blocks = [range(low // size, -(-high // size)) for (low, high), size in zip(spans, sizes)]
        for block in itertools.product(*blocks):
            cut = [
                (max(low, number * size), min(high, (number + 1) * size))
                for number, (low, high), size in zip(block, spans, sizes)
            ]
            inside = tuple((a - number * size, b - number * size) for (a, b), number, size in zip(cut, block, sizes))
            part = tuple(slice(a - low, b - low) for (a, b), (low, _) in zip(cut, spans))
            yield f"{self.info.folder}/c/{'/'.join(map(str, block))}", inside, part

    def runs(self, inside: Sequence[Span]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """What is in one piece in a file, of a part of it: where it begins, and its index in the part."""
        sizes = self.info.file
        axis = len(sizes) - 1
        while axis and inside[axis] == (0, sizes[axis]):  # whole rows of the axes after it follow one another
            axis -= 1
        strides = [math.prod(sizes[i + 1 :]) * self._itemsize for i in range(axis + 1)]
        first = self.start + sum(low * stride for (low, _), stride in zip(inside, strides))
        for index in itertools.product(*(range(high - low) for low, high in inside[:axis])):
            yield first + sum(i * stride for i, stride in zip(index, strides)), index

    def read(self, folder: Path, first: int, last: int, into: np.ndarray) -> None:
        """Reads whole rows from a disk into an array.

        Raises:
            OSError: A file cannot be read.
            ValueError: A file is missing, or too short.
        """
        for name, inside, part in self.parts((first, last), self._whole_row):
            with _opened(folder, name) as descriptor:
                for offset, index in self.runs(inside):
                    target = into[part][index]
                    data = target if target.flags.c_contiguous else np.empty_like(target)
                    _read_at(descriptor, data, offset, name)
                    if data is not target:
                        target[...] = data


@contextlib.contextmanager
def _opened(folder: Path, name: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    # Others may have put something else there: opening a pipe must not wait, and what a link leads to is not written.
    flags |= os.O_NONBLOCK | (0 if flags == os.O_RDONLY else os.O_NOFOLLOW)
    try:
        descriptor = os.open(f"{folder}/{name}", flags, 0o666)
    except FileNotFoundError:
        raise ValueError(f"{name} is missing") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _bytes_of(data: np.ndarray) -> memoryview:
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def _read_at(descriptor: int, data: np.ndarray, offset: int, name: str) -> None:
    left = _bytes_of(data)
    while left:
        count = os.preadv(descriptor, [left], offset)
        if not count:
            raise ValueError(f"{name} is too short")
        left, offset = left[count:], offset + count


def _write_at(descriptor: int, data: memoryview | bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        count = os.pwrite(descriptor, left, offset)
        left, offset = left[count:], offset + count


@dataclasses.dataclass
class Written:
    """What was written since the last time, and is not yet sure to stay.

    Attributes:
        files: The files by name; in a bucket, what they get: where, and where it is in the temporary file.
        folders: Folders with new files.
        scratch: The temporary file, which has no name and goes with the process.
    """

    files: dict[str, list[tuple[int, int, int]]] = dataclasses.field(default_factory=dict)
    folders: set[Path] = dataclasses.field(default_factory=set)
    scratch: io.FileIO | None = None


class RowWriter:
    """Writes rows of the arrays of a store.

    Args:
        folder: The store.
        infos: The arrays.
        memory: How many bytes may be held to send rows to a bucket.
    """

    def __init__(self, folder: Folder, infos: Iterable[ArrayInfo], memory: int = 1 << 28) -> None:
        self._folder, self._memory = folder, memory
        self._files = {info.folder: RowFiles(info) for info in infos}
        self._arrays = list(self._files.values())
        self._written = Written()

    def write(self, number: int, piece: Piece) -> None:
        """Writes rows of an array, by its place among the arrays.

        Raises:
            StoreError: The disk is full, or the folder cannot be written.
        """
        files, columns, before = self._arrays[number], [(part.start, part.stop) for part in piece.columns], 0
        if not piece.data.size:
            return
        for first, last in piece.spans():
            data = piece.data[before : before + last - first]
            before += last - first
            for name, inside, part in files.parts((first, last), columns):
                runs = ((offset, _bytes_of(data[part][index])) for offset, index in files.runs(inside))
                with self._folder.writing():
                    self._keep(name, files, runs)

    def taken(self) -> Written:
        """What was written since the last call."""
        written, self._written = self._written, Written()
        return written

    def settle(self, written: Written) -> None:
        """Makes sure that it stays: syncs files, or sends them to the bucket.

        Raises:
            StoreError: The disk or the bucket cannot be written.
        """
        local = self._folder.local_path
        with self._folder.writing():
            if local is not None:
                self._each(lambda name: _sync(local / name), written.files, _AT_ONCE)
                for path in written.folders:
                    _sync(path)
                return
            try:
                largest = max((files.size(files.info.file[0]) for files in self._arrays), default=1)
                at_once = max(1, min(_AT_ONCE, self._memory // (COPIES * largest)))
                self._each(lambda name: self._send(name, written), written.files, at_once)
            finally:
                if written.scratch is not None:
                    written.scratch.close()
                _trim()

    def complete(self, counts: Sequence[int], *, every: bool = False) -> None:
        """Makes files as other programs expect them: with their index, and up to the end of a chunk.

        Files in a bucket are always so.

        Args:
            counts: How many rows each array has.
            every: Whether to look at all files; else the last one of each array.
        """
        local = self._folder.local_path
        if local is None:
            return
        for files, n_rows in zip(self._arrays, counts):
            first = 0 if every else max(0, (n_rows - 1) // files.info.file[0] * files.info.file[0])
            for name, span in files.names(first, n_rows):
                with self._folder.writing(), _opened(local, name, os.O_WRONLY) as descriptor:
                    _write_at(descriptor, files.head, 0)
                    os.ftruncate(descriptor, files.end_of(span[1] - span[0]))  # more is of a harvest that was killed
                    os.ftruncate(descriptor, files.size(span[1] - span[0]))
                    os.fsync(descriptor)

    @staticmethod
    def _each(do: Callable[[str], None], names: Iterable[str], at_once: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            for done in [pool.submit(do, name) for name in names]:
                done.result()

    def _keep(self, name: str, files: RowFiles, runs: Iterable[tuple[int, memoryview]]) -> None:
        local, written = self._folder.local_path, self._written
        waiting = written.files.setdefault(name, [])
        if local is None:
            if written.scratch is None:
                written.scratch = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            for offset, data in runs:
                start = written.scratch.seek(0, io.SEEK_END)
                _write_at(written.scratch.fileno(), data, start)
                waiting.append((offset, len(data), start))
            return
        path = local / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            written.folders.update(parent for parent in path.parents if parent.is_relative_to(local))
        with _opened(local, name, os.O_WRONLY | os.O_CREAT) as descriptor:
            _write_at(descriptor, files.head, 0)
            for offset, data in runs:
                _write_at(descriptor, data, offset)

    def _send(self, name: str, written: Written) -> None:
        """Writes rows into an object. Another process may write other rows into it meanwhile."""
        assert written.scratch is not None
        files = self._files["/".join(name.split("/")[:2])]
        parts, scratch = written.files[name], written.scratch.fileno()
        end = max(offset + length for offset, length, _ in parts)
        size = files.size(-(-(end - files.start) // (files.end_of(1) - files.start)))
        while True:
            data, version = self._folder.read_version(name)
            contents = bytearray(files.head if data is None else data)
            contents.extend(bytes(max(0, size - len(contents))))
            for offset, length, start in parts:
                contents[offset : offset + length] = os.pread(scratch, length, start)
            if self._folder.write_if(name, bytes(contents), version) is not None:
                return


def _trim() -> None:
    """Gives free memory back to the system: Linux's allocator keeps it for each of the threads that send objects."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
