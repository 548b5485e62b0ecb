"""GGUF files of llama.cpp: metadata, tokenizer and tensors in one file, quantized or not.

The header is read here, because the reader of the package `gguf` takes longer for it than for all tensors together; the
package dequantizes. Metadata becomes the config, and tensors get the names and layouts, of a Hugging Face folder of the
same model, so everything after that is the same for both.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde import _extras
from sonde.errors import ModelFileError
from sonde.models.files.gguf_configs import Fields, config_of
from sonde.models.files.gguf_names import changes_of, names_of, parts_of
from sonde.models.files.gguf_tokens import tokenizer_of
from sonde.models.files.safetensors import give_back
from sonde.models.files.tensors import Tensor, Tensors
from sonde.models.files.untrusted import checked_config, is_size, opened, reading
from sonde.models.tokens import Tokenizer

# The numbers that metadata is made of, by their code in the file.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Kinds of tensors that are not quantized.
_PLAIN = {
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(jnp.bfloat16),
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}
_MOST_ENTRIES = 1 << 16
_MOST_AXES = 8
_MOST_ELEMENTS = 1 << 21  # of all arrays together; a vocabulary of 262,144 tokens takes less than a million
_LONGEST_TEXT = 1 << 24
_DEEPEST = 4  # arrays in arrays
_LARGEST_ALIGNMENT = 1 << 20
_AT_A_TIME = 1 << 18  # bytes that are dequantized at a time, so that they and their numbers fit in the CPU's cache


def read_file(path: Path) -> tuple[dict[str, Any], Tensors, Tokenizer | None]:
    """The config, the tensors and the tokenizer of a file, as from a Hugging Face folder.

    Raises:
        ModelFileError: The file is not a GGUF file, was truncated, or its architecture is not supported.
    """
    with opened(path) as file:
        if file.read(4) != b"GGUF":
            raise ModelFileError(f"{path} is not a GGUF file.")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with reading(path, "its header"):
        fields, tensors = _header(mapped, path)
    with reading(path, "its metadata"):
        raw = config_of(fields, tensors, str(path))
        renamed = _renamed(tensors, fields["general.architecture"], checked_config(raw))
    with reading(path, "its tokenizer"):
        return raw, renamed, tokenizer_of(fields, path)


def _header(mapped: mmap.mmap, path: Path) -> tuple[Fields, Tensors]:
    """The metadata and the tensors of a file."""
    reader = _Reader(mapped, path)
    version, n_tensors, n_fields = reader.numbers("IQQ")
    if version not in (2, 3):
        raise ModelFileError(f"{path} is a GGUF file of version {version}; versions 2 and 3 are supported.")
    for what, count in (("tensors", n_tensors), ("entries of metadata", n_fields)):
        if count > _MOST_ENTRIES:
            raise ModelFileError(f"{path} has {count} {what} by its header; at most {_MOST_ENTRIES} are read.")
    fields: Fields = {}
    for _ in range(n_fields):
        name = reader.string()
        if name in fields:
            raise ModelFileError(f"{path} has the metadata {name!r} twice.")
        fields[name] = reader.value(reader.numbers("I")[0])
    infos = [reader.tensor() for _ in range(n_tensors)]
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= _LARGEST_ALIGNMENT:
        raise ModelFileError(f"{path} has general.alignment {alignment!r}, which is not a number of bytes.")
    start = -(-reader.at // alignment) * alignment
    tensors: Tensors = {}
    end, before = 0, ""
    for name, shape, kind, at in sorted(infos, key=lambda info: info[3]):
        if name in tensors:
            raise ModelFileError(f"{path} has the tensor {name} twice.")
        tensors[name], stop = _tensor(name, shape, kind, start + at, mapped, path)
        if start + at < end:
            raise ModelFileError(f"{path} has {name} in bytes that {before} has too.")
        end, before = stop, name
    return fields, {name: tensors[name] for name, *_ in infos}


class _Reader:
    """Reads the header piece by piece."""

    def __init__(self, mapped: mmap.mmap, path: Path) -> None:
        self._mapped, self._path = mapped, path
        self._elements = 0
        self.at = 4

    def _take(self, size: int) -> int:
        start, self.at = self.at, self.at + size
        if self.at > len(self._mapped):
            raise ModelFileError(f"{self._path} is truncated: its header extends beyond its {len(self._mapped)} bytes.")
        return start

    def numbers(self, form: str) -> tuple[Any, ...]:
        form = "<" + form
        return struct.unpack_from(form, self._mapped, self._take(struct.calcsize(form)))

    def string(self) -> str:
        size = self.numbers("Q")[0]
        if size > _LONGEST_TEXT:
            raise ModelFileError(f"{self._path} has a text of {size} bytes; at most {_LONGEST_TEXT} are read.")
        start = self._take(size)
        return self._mapped[start : start + size].decode("utf-8", "replace")

    def _strings(self, count: int) -> list[str]:
        """Many strings at once: vocabularies have a hundred thousand."""
        size_at, mapped, at, found = struct.Struct("<Q").unpack_from, self._mapped, self.at, []
        end = len(mapped) - 8
        for _ in range(count):
            if at > end:
                break
            start = at + 8
            at = start + size_at(mapped, at)[0]
            found.append(mapped[start:at].decode("utf-8", "replace"))
        self._take((at if len(found) == count else end + 9) - self.at)
        return found

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.numbers("IQ")
            self._elements += count
            if self._elements > _MOST_ELEMENTS or depth > _DEEPEST:  # one takes far more memory than its bytes
                raise ModelFileError(f"{self._path} has metadata of {self._elements} elements, which is too much.")
            if inner in _NUMBERS:
                return list(self.numbers(f"{count}{_NUMBERS[inner]}"))
            if inner == _STRING:
                return self._strings(count)
            return [self.value(inner, depth + 1) for _ in range(count)]
        if kind not in _NUMBERS:
            raise ModelFileError(f"{self._path} has metadata of the kind {kind}, which is unknown.")
        return self.numbers(_NUMBERS[kind])[0]

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """The name, shape, kind and offset of a tensor."""
        name, n_axes = self.string(), self.numbers("I")[0]
        if not 1 <= n_axes <= _MOST_AXES:
            raise ModelFileError(f"{self._path} has {name} with {n_axes} axes.")
        sizes = self.numbers(f"{n_axes}Q")
        if not is_size(sizes):
            raise ModelFileError(f"{self._path} has {name} with the shape {sizes}, which no array has.")
        kind, at = self.numbers("IQ")
        return name, tuple(reversed(sizes)), kind, at


def _tensor(
    name: str, shape: tuple[int, ...], kind: int, first: int, mapped: mmap.mmap, path: Path
) -> tuple[Tensor, int]:
    """A tensor, and the byte after its last."""
    gguf = _extras.load("gguf", extra="models", purpose="A .gguf file")
    try:
        quantization = gguf.GGMLQuantizationType(kind)
        block, size = gguf.GGML_QUANT_SIZES[quantization]
    except (ValueError, KeyError) as error:
        raise ModelFileError(f"{path} has {name} in the quantization {kind}, which is unknown.") from error
    if shape[-1] % block:
        raise ModelFileError(
            f"{path} has {name} with rows of {shape[-1]}, but {quantization.name} has blocks of {block}."
        )
    row = shape[-1] // block * size
    last = first + math.prod(shape[:-1]) * row
    if last > len(mapped):
        raise ModelFileError(f"{path} is truncated: {name} ends at byte {last}, the file at {len(mapped)}.")

    plain = _PLAIN.get(quantization.name)

    def read() -> np.ndarray:
        stored = np.frombuffer(mapped, np.uint8, last - first, first).reshape(*shape[:-1], row)
        if plain is not None:
            return stored.view(plain)
        try:
            return _dequantized(gguf.quants, stored, quantization).reshape(shape)
        except NotImplementedError as error:
            raise ModelFileError(
                f"{path} has {name} as {quantization.name}, which the package gguf cannot dequantize."
            ) from error

    dtype = plain or np.dtype(np.float32)
    return Tensor(name, shape, dtype, read, lambda: give_back(mapped, first, last), str(path)), last


def _dequantized(quants: Any, stored: np.ndarray, quantization: Any) -> np.ndarray:
    """The numbers of a quantized tensor.

    The package converts sixteen rows at a time, which takes twice as long as megabytes of rows. Kinds that need tables
    are left to it.
    """
    kind: Any = getattr(quants, quantization.name, None)
    if not quantization.name.startswith("Q") or not hasattr(kind, "dequantize_rows"):
        return quants.dequantize(stored, quantization)
    rows = stored.reshape(-1, stored.shape[-1])
    some = max(1, _AT_A_TIME // rows.shape[-1])
    first = kind.dequantize_rows(rows[:some])
    found = np.empty((rows.shape[0], first.shape[-1]), np.float32)
    found[:some] = first
    for at in range(some, rows.shape[0], some):
        found[at : at + some] = kind.dequantize_rows(rows[at : at + some])
    return found


def _renamed(tensors: Tensors, architecture: str, raw: dict[str, Any]) -> Tensors:
    """The tensors with the names and layouts of a Hugging Face folder; those that are not parameters are left out."""
    names, changes = names_of(architecture), changes_of(architecture, raw)
    found: Tensors = {}
    for whole, tensor in tensors.items():
        for part, rows in parts_of(architecture, whole, raw).items():
            theirs = names(part)
            if theirs is not None:
                found[theirs] = _changed(tensor, theirs, rows, changes(theirs))
    return found


def _changed(tensor: Tensor, name: str, rows: slice, change: Callable[[np.ndarray], np.ndarray] | None) -> Tensor:
    """Some rows of a tensor, under another name and in another layout."""

    def changed(x: np.ndarray) -> np.ndarray:
        return x[rows] if change is None else change(x[rows])

    shape = changed(np.broadcast_to(np.float32(0), tensor.shape)).shape
    return Tensor(name, shape, tensor.dtype, lambda: changed(tensor.read()), tensor.release, tensor.where)
