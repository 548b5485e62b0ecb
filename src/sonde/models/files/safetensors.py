"""Files of safetensors: a JSON header with names, dtypes, shapes and offsets, then the numbers.

They are read here and not by the package `safetensors`, so that numbers stay in the mapped file until a device takes
them, its pages can be released tensor by tensor, and a truncated file can be told from one that is not safetensors.
"""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import jax.numpy as jnp
import numpy as np

from sonde._array_text import indexed
from sonde._atomic_files import replaced_file
from sonde.errors import ModelFileError
from sonde.models.files.tensors import Tensor, Tensors
from sonde.models.files.untrusted import inside, is_size, opened, parse_object, read_json

DTYPES: dict[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "U16": np.dtype(np.uint16),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "I64": np.dtype(np.int64),
    "U64": np.dtype(np.uint64),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F8_E4M3": np.dtype(jnp.float8_e4m3fn),
    "F8_E5M2": np.dtype(jnp.float8_e5m2),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LARGEST_HEADER = 100_000_000
_MOST_AXES = 32
_MOST_FILES = 10_000
_INDEX = "model.safetensors.index.json"


def read_folder(folder: Path) -> Tensors:
    """The tensors of a folder: of `model.safetensors`, or of the files that an index names.

    Raises:
        ModelFileError: There is no safetensors file, one that the index names is missing, or one cannot be read.
    """
    index = folder / _INDEX
    if index.exists():
        weights = read_json(index).get("weight_map")
        if not isinstance(weights, dict):
            raise ModelFileError(f"{index} has no object weight_map.")
        names = sorted({str(name) for name in weights.values()})
        if len(names) > _MOST_FILES:
            raise ModelFileError(f"{index} names {len(names)} files; at most {_MOST_FILES} are read.")
        paths = {name: inside(folder, name, index) for name in names}
        missing = [name for name in names if not paths[name].is_file()]
        if missing:
            raise ModelFileError(f"{index} names files that do not exist: {_some(missing)}.")
        tensors: Tensors = {}
        for name in names:
            # A tensor that several files have is taken from the one that the index names.
            of_file = read_file(paths[name]).items()
            tensors |= {key: tensor for key, tensor in of_file if weights.get(key, name) == name}
        lost = sorted(set(weights) - set(tensors))
        if lost:
            raise ModelFileError(f"{index} names tensors that its files do not have: {_some(lost)}.")
        return tensors
    files = [folder / "model.safetensors"] if (folder / "model.safetensors").exists() else []
    files = files or sorted(folder.glob("*.safetensors"))
    if not files:
        others = sorted(path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".ckpt"))
        hint = f" Its {', '.join(others)} may hold pickled code and will not be opened." if others else ""
        raise ModelFileError(f"{folder} has no .safetensors file.{hint}")
    tensors = {}
    for file in files:
        of_file = read_file(file)
        twice = sorted(set(tensors) & set(of_file))
        if twice:
            raise ModelFileError(
                f"several files in {folder} have the tensors {_some(twice)}, and no index chooses one."
            )
        tensors |= of_file
    return tensors


def read_file(path: Path) -> Tensors:
    """The tensors of a file. Nothing but the header is read.

    Raises:
        ModelFileError: The file is not a safetensors file, was truncated, or has an unknown dtype.
    """
    with opened(path) as file:
        size = path.stat().st_size
        start = int.from_bytes(file.read(8), "little")
        if size < 8 or not 2 <= start <= _LARGEST_HEADER:
            raise ModelFileError(f"{path} is not a safetensors file.")
        if size < 8 + start:
            raise ModelFileError(f"{path} is truncated: its header has {start} bytes, the file {size}.")
        header = parse_object(file.read(start), f"the header of {path}")
        header.pop("__metadata__", None)
        entries = {name: _entry(name, entry, path) for name, entry in header.items()}
        needed = 8 + start + max((entry.last for entry in entries.values()), default=0)
        if size < needed:
            raise ModelFileError(f"{path} is truncated: its tensors need {needed} bytes, the file has {size}.")
        _check_apart(entries, path)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return {name: _tensor(name, entry, mapped, 8 + start, path) for name, entry in entries.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor as the header describes it: the bytes from `first` to before `last`, counted after the header."""

    dtype: np.dtype
    shape: tuple[int, ...]
    first: int
    last: int


def _entry(name: str, told: Any, path: Path) -> _Entry:
    if not isinstance(told, dict):
        raise ModelFileError(f"{path} describes {name} by {told!r}, which is not an object.")
    dtype, shape, offsets = (told.get(field) for field in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ModelFileError(f"{path} has {name} in the dtype {dtype}, which is unknown.")
    if not _are_counts(shape) or len(shape) > _MOST_AXES or not is_size(shape):
        raise ModelFileError(f"{path} has {name} with the shape {shape!r}, which is not a list of sizes.")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise ModelFileError(f"{path} has {name} at the data_offsets {offsets!r}, which are not two numbers of bytes.")
    first, last = offsets
    if last - first != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ModelFileError(
            f"{path} has {name} with {last - first} bytes, which does not fit {indexed(DTYPES[dtype], tuple(shape))}."
        )
    return _Entry(DTYPES[dtype], tuple(shape), first, last)


def _are_counts(numbers: Any) -> TypeGuard[list[int]]:
    return isinstance(numbers, list) and all(type(n) is int and n >= 0 for n in numbers)


def _check_apart(entries: Mapping[str, _Entry], path: Path) -> None:
    """Raises ModelFileError if two tensors share bytes: they could need far more memory than the file has."""
    end, before = 0, ""
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].first, item[1].last)):
        if entry.first < end:
            raise ModelFileError(f"{path} has {name} in bytes that {before} has too.")
        end, before = entry.last, name


def _tensor(name: str, entry: _Entry, mapped: mmap.mmap, start: int, path: Path) -> Tensor:
    first, last = start + entry.first, start + entry.last

    def read() -> np.ndarray:
        return np.frombuffer(mapped, np.uint8, last - first, first).view(entry.dtype).reshape(entry.shape)

    return Tensor(name, entry.shape, entry.dtype, read, lambda: give_back(mapped, first, last), str(path))


def give_back(mapped: mmap.mmap, first: int, last: int) -> None:
    """Releases pages of a mapped file that are no longer needed; otherwise they count as memory of the process."""
    page = mmap.PAGESIZE
    begin, end = -(-first // page) * page, last // page * page
    if end > begin and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def write_folder(folder: Path, tensors: Iterable[tuple[str, Any, Any]], *, largest: int) -> None:
    """Writes tensors as `model.safetensors`, or as several files with an index if they are too large for one.

    Args:
        folder: The folder to write to.
        tensors: Names, types (with `shape` and `dtype`), and functions that return the numbers.
        largest: The maximum number of bytes per file.
    """
    files: list[list[tuple[str, Any, Any]]] = [[]]
    filled = 0
    for entry in tensors:
        size = _bytes(entry[1])
        if filled and filled + size > largest:
            files.append([])
            filled = 0
        files[-1].append(entry)
        filled += size
    if len(files) == 1:
        write_file(folder / "model.safetensors", files[0])
        return
    names = [f"model-{i:05}-of-{len(files):05}.safetensors" for i in range(1, len(files) + 1)]
    for name, entries in zip(names, files):
        write_file(folder / name, entries)
    weights = {entry[0]: name for name, entries in zip(names, files) for entry in entries}
    total = sum(_bytes(entry[1]) for entries in files for entry in entries)
    index = {"metadata": {"total_size": total}, "weight_map": weights}
    with replaced_file(folder / _INDEX) as partial:
        partial.write_text(json.dumps(index, indent=2))


def write_file(path: Path, entries: Iterable[tuple[str, Any, Any]]) -> None:
    """Writes a file, one tensor at a time; the file gets its name when it is complete.

    Raises:
        ModelFileError: The format has no name for a dtype.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # what `transformers` expects to find there
    entries, offset = list(entries), 0
    for name, kind, _ in entries:
        dtype = _NAMES.get(np.dtype(kind.dtype))
        if dtype is None:
            raise ModelFileError(f"a .safetensors file cannot hold {name}: its dtype is {kind.dtype}.")
        header[name] = {"dtype": dtype, "shape": list(kind.shape), "data_offsets": [offset, offset + _bytes(kind)]}
        offset += _bytes(kind)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with replaced_file(path) as partial, partial.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, numbers in entries:
            file.write(np.ascontiguousarray(numbers()).view(np.uint8).reshape(-1).data)


def _bytes(kind: Any) -> int:
    return int(np.prod(kind.shape, dtype=np.int64)) * np.dtype(kind.dtype).itemsize


def _some(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
