"""Named arrays from files: `.npz`, safetensors, and files of PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from sonde._npz import read_npz
from sonde._torch_files import read_torch

_TORCH = (".pt", ".pth", ".bin")
_DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def read_named_arrays(file: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a file, by name. No code in it is run.

    Args:
        file: `.npz`, `.safetensors`, or a file of PyTorch: `.pt`, `.pth` or `.bin`. Arrays in dictionaries within
            dictionaries have the keys joined by `/`; numbers and texts beside them are left out.

    Raises:
        ValueError: The file is of another kind, or is not what its name says.
    """
    file = Path(file)
    if file.suffix == ".npz":
        return read_npz(file)
    if file.suffix == ".safetensors":
        return _read_safetensors(file)
    if file.suffix in _TORCH:
        return dict(_flat(read_torch(file), ""))
    raise ValueError(f"{str(file)!r} is no file of named arrays: .npz, .safetensors and {', '.join(_TORCH)} are read")


def _flat(tree: object, prefix: str) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(tree, np.ndarray):
        yield prefix, tree
    elif isinstance(tree, Mapping | list | tuple):
        for key, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from _flat(value, f"{prefix}/{key}" if prefix else str(key))


def _read_safetensors(file: Path) -> dict[str, np.ndarray]:
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 + size:
        raise ValueError(f"{str(file)!r} is not a safetensors file, or is cut off")
    header = json.loads(data[8 : 8 + size])
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"array {name!r} of {str(file)!r} has dtype {entry['dtype']}, which is not read")
        start, stop = (8 + size + offset for offset in entry["data_offsets"])
        if stop > len(data):
            raise ValueError(f"{str(file)!r} is cut off: array {name!r} ends after its end")
        arrays[name] = np.frombuffer(data[start:stop], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays
