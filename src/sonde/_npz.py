"""NumPy's `.npz` and `.npy` files, looked at before memory is taken: a header may describe more than the file has."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

_MOST_EXPANDED, _MOST_COMPRESSION = 1 << 28, 100  # what compressed arrays may become: bytes, and times the file
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, by name. No pickle is opened.

    Raises:
        ValueError: the file is damaged, or an array is not as long as its header says.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            expanded, size = sum(member.file_size for member in archive.infolist()), path.stat().st_size
            if expanded > max(_MOST_EXPANDED, _MOST_COMPRESSION * size):
                raise ValueError(f"its {size} bytes would become {expanded}")
            for member in archive.infolist():
                if member.compress_type == zipfile.ZIP_STORED and member.file_size > path.stat().st_size:
                    raise ValueError(f"{member.filename} is longer than the file that it is in")
                with archive.open(member) as stream:
                    _check(stream, member.filename.removesuffix(".npy"), member.file_size)
        with np.load(path, allow_pickle=False) as opened:
            return {name: opened[name] for name in opened.files}
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, KeyError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def read_npy(path: Path) -> np.ndarray:
    """The array of a file. No pickle is opened.

    Raises:
        ValueError: the file is damaged, or the array is not as long as its header says.
    """
    with path.open("rb") as stream:
        _check(stream, "the array", path.stat().st_size)
    return np.load(path, allow_pickle=False)


def _check(stream: IO[bytes], name: str, size: int) -> None:
    """Raises ValueError if an array does not have the size that its header says."""
    header: Any = _HEADERS.get(np.lib.format.read_magic(stream))
    if header is None:
        raise ValueError(f"{name} is in a version of NumPy's format that is not read")
    shape, _, dtype = header(stream)
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which could run code when read")
    needed = stream.tell() + math.prod(shape) * dtype.itemsize
    if needed != size or any(n < 0 for n in shape):
        raise ValueError(f"{name} has the shape {shape} by its header, for which {size} bytes are not right")
