"""Rows that wait on the disk until they fill files.

They are in a file without a name, which goes with the process.
"""

from __future__ import annotations

import dataclasses
import io
import tempfile

import numpy as np

from sonde.store.format.folder import Folder
from sonde.store.format.rows import Piece


@dataclasses.dataclass(frozen=True, slots=True)
class Spilled:
    """A piece on the disk.

    Attributes:
        rows: As those of the piece.
        columns: As those of the piece.
        shape: The shape of its contents.
        dtype: Their dtype.
        start: Where their bytes begin.
    """

    rows: slice | np.ndarray
    columns: tuple[slice, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    start: int


class Spill:
    """The file. It is made when it is first needed: beside a store on a disk, else where temporary files are."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._file: io.FileIO | None = None
        self._end = 0

    def close(self) -> None:
        """Removes the file."""
        if self._file is not None:
            self._file.close()

    def put(self, piece: Piece) -> Spilled:
        """Writes a piece to the file."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder.local_path, buffering=0)  # noqa: SIM115
        start, data = self._end, np.ascontiguousarray(piece.data)
        left = data.reshape(-1).view(np.uint8).data
        self._file.seek(start)
        while left:
            left = left[self._file.write(left) :]
        self._end = start + data.nbytes
        return Spilled(piece.rows, piece.columns, data.shape, data.dtype, start)

    def taken(self, spilled: Spilled) -> Piece:
        """Reads a piece back."""
        assert self._file is not None
        data = np.empty(spilled.shape, spilled.dtype)
        left = data.reshape(-1).view(np.uint8).data
        self._file.seek(spilled.start)
        while left:
            count = self._file.readinto(left)
            if not count:
                raise OSError("a temporary file is shorter than what was written to it")
            left = left[count:]
        return Piece(spilled.rows, spilled.columns, data)
