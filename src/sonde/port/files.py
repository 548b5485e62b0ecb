"""Named arrays from files: `.npz` and safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np

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
    """The arrays of a file, by name.

    Raises:
        ValueError: The file is of another kind, or is not what its name says.
    """
    file = Path(file)
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    if file.suffix == ".safetensors":
        return _read_safetensors(file)
    raise ValueError(f"{str(file)!r} is no file of named arrays: .npz and .safetensors are read")


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
