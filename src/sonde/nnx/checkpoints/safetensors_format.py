"""Safetensors files: bare arrays under names such as `layers.0.kernel`, as other libraries exchange them.

Sharp edges:

* Random keys are stored as the numbers inside; their generator is that of the model they are restored into.
* The format cannot hold JAX's eight-bit floats and four-bit integers that NumPy does not have: an error.
* Only one process can write a file, and it needs every array whole.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _extras
from sonde._atomic_files import replaced_file
from sonde.nnx.checkpoints.damage import readable
from sonde.nnx.checkpoints.entries import Entry, Name, show
from sonde.nnx.checkpoints.fitting import is_key
from sonde.nnx.checkpoints.placement import sharding_of

_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}


def _safetensors(module: str = "safetensors") -> Any:
    return _extras.load(module, extra="safetensors", purpose="A .safetensors file")


def dotted(name: str) -> str:
    """A name with its dots as levels: the file cannot tell dots and levels apart."""
    return name.replace(".", "/")


def write(path: str, entries: list[Entry], *, overwrite: bool) -> None:
    """Writes a file.

    Raises:
        FileExistsError: Something exists at the path.
        ValueError: The format cannot hold an array.
    """
    save_file = _safetensors("safetensors.numpy").save_file
    if not overwrite and os.path.exists(path):
        raise FileExistsError(f"{path} already exists. Pass overwrite=True to replace it.")
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for entry in entries:
        for keys, value in entry.parts():
            array = np.require(jax.random.key_data(value) if is_key(value) else value, requirements="C")
            if array.dtype.name not in _DTYPES.values():
                raise ValueError(f"A .safetensors file cannot hold {show(entry.path)}: its dtype is {array.dtype}.")
            arrays[".".join((*entry.name, *keys))] = array
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with replaced_file(path) as file:
        save_file(arrays, str(file))


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    open_file = _safetensors().safe_open
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no checkpoint at {path}.")
    if not os.path.isfile(path):
        raise ValueError(f"{path} is not a file; a checkpoint whose name ends in .safetensors must be one.")
    with readable(path):
        file = open_file(path, framework="numpy")
    with file:
        yield file


def describe(path: str) -> dict[Name, jax.ShapeDtypeStruct]:
    """Names, shapes and dtypes of what a file has; random keys as the numbers inside.

    Raises:
        ValueError: An array has a dtype that cannot be read.
    """
    entries = {}
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 - it is not a dict
            array = file.get_slice(name)
            if array.get_dtype() not in _DTYPES:
                raise ValueError(f"{path} has {name} in the dtype {array.get_dtype()}, which cannot be read here.")
            dtype = jnp.dtype(_DTYPES[array.get_dtype()])
            entries[tuple(name.split("."))] = jax.ShapeDtypeStruct(tuple(array.get_shape()), dtype)
    return entries


def fetch(path: str, wanted: Mapping[Name, Any]) -> dict[Name, Any]:
    """Reads arrays; every device reads only its own part of a sharded array.

    Args:
        path: The file.
        wanted: Names, each with an array or ShapeDtypeStruct whose sharding the array must get.
    """
    with _opened(path) as file, readable(path):
        return {name: _fetched(file, ".".join(name), target) for name, target in wanted.items()}


def _fetched(file: Any, name: str, target: Any) -> Any:
    sharding = sharding_of(target)
    if sharding is None or is_key(target) or not np.size(target):
        return file.get_tensor(name)
    part = file.get_slice(name)
    return jax.make_array_from_callback(tuple(part.get_shape()), sharding, lambda index: part[index or ...])
