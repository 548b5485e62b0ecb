"""Files that PyTorch writes (`.pt`, `.pth`, `.bin`), read without PyTorch and without running the pickled code in them.

Only what dictionaries of tensors need is read; everything else that a file names is refused.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

_STORAGES: dict[str, Any] = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": jnp.bfloat16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}


def read_torch(file: Path) -> Any:
    """What a file holds: dictionaries, lists and numbers, with NumPy arrays for tensors.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, or names something else.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            size = file.stat().st_size
            for member in archive.infolist():
                if member.compress_type != zipfile.ZIP_STORED or member.file_size > size:
                    raise ValueError(f"{member.filename} is compressed, or longer than the file that it is in")
            program = next((name for name in archive.namelist() if name.endswith("data.pkl")), None)
            if program is None:
                raise ValueError("it holds no data.pkl")
            return _Reader(archive, program.removesuffix("data.pkl")).load()
    except FileNotFoundError:
        raise
    except Exception as error:  # a pickle that is damaged raises anything
        raise ValueError(f"{str(file)!r} is not a file of tensors: {type(error).__name__}: {error}") from error


class _Storage(NamedTuple):
    """A type of storage that a file names."""

    dtype: np.dtype[Any]


class _Reader(pickle.Unpickler):
    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}data.pkl")))
        self._archive, self._root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _parameter
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _STORAGES:
            return _Storage(np.dtype(_STORAGES[name]))
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is refused")

    def persistent_load(self, pid: Any) -> np.ndarray:
        _, storage, key, *_ = pid
        return np.frombuffer(self._archive.read(f"{self._root}data/{key}"), storage.dtype)


def _tensor(storage: np.ndarray, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> np.ndarray:
    last = offset + sum((size - 1) * step for size, step in zip(shape, strides))
    is_inside = offset >= 0 and min((*shape, *strides, 0)) >= 0 and (0 in shape or last < len(storage))
    if not is_inside or math.prod(shape) > max(len(storage), 1):
        raise pickle.UnpicklingError("a tensor is outside its storage, or larger")
    inside = storage[offset:]
    return np.lib.stride_tricks.as_strided(inside, shape, [step * inside.itemsize for step in strides]).copy()


def _parameter(tensor: np.ndarray, *_: Any) -> np.ndarray:
    return tensor
