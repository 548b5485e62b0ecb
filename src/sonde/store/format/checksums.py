"""Checksums that detect whether the program, the weights or the data differ from those that a store was started with.

They guard against mistakes and are not proofs: a program is compared by its equations, weights by a sum computed on
their devices, batches by all of their bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.tools.execution.host_transfer import in_turn

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
# Where arrays are does not change what is computed: other devices may continue.
_PLACES = re.compile(r"Mesh|Sharding|UnspecifiedValue|Layout")


def of_program(jaxpr: Any) -> str:
    """A checksum of the equations of a program, which does not depend on where its objects are in memory."""
    found = hashlib.sha256()
    _add_equations(jaxpr, found.update)
    return found.hexdigest()[:16]


def _add_equations(jaxpr: Any, add: Any) -> None:
    opened = _jax.open_jaxpr(jaxpr)
    numbers: dict[Any, int] = {}

    def name(var: Any) -> str:
        if hasattr(var, "val"):
            return f"={var.val}"
        return str(numbers.setdefault(var, len(numbers)))

    add(" ".join(f"{name(v)}:{v.aval}" for v in opened.invars).encode())
    for eqn in opened.eqns:
        inputs = " ".join(map(name, eqn.invars))
        outputs = " ".join(f"{name(v)}:{v.aval}" for v in eqn.outvars)
        add(f"\n{eqn.primitive.name} {inputs} -> {outputs}".encode())
        for key, value in sorted(eqn.params.items()):
            inner = list(_jax.sub_jaxprs({key: value}))
            add(key.encode())
            if inner:
                for each in inner:
                    _add_equations(each, add)
            elif not callable(value) and not _PLACES.search(text := _ADDRESS.sub("", repr(value))):
                add(text.encode())
    add(" ".join(map(name, opened.outvars)).encode())


def of_arrays(arrays: Iterable[Any]) -> str:
    """A checksum of arrays, computed on their devices; the same on every process."""
    sums = _sums([jax.random.key_data(x) if _is_key(x) else x for x in arrays])
    return hashlib.sha256(np.asarray(sums).tobytes()).hexdigest()[:16]


def _is_key(array: Any) -> bool:
    return hasattr(array, "dtype") and jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


@jax.jit
def _sums(arrays: Sequence[Any]) -> Any:
    return jnp.stack([jnp.zeros(2, jnp.uint32), *[_sum(jnp.asarray(x)) for x in arrays]])


def _sum(array: Any) -> Any:
    if not array.size:
        return jnp.zeros(2, jnp.uint32)
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack([np.real(array), np.imag(array)])
    if (jnp.iinfo if jnp.issubdtype(array.dtype, jnp.integer) else jnp.finfo)(array.dtype).bits < 8:
        array = array.astype(jnp.int8 if jnp.issubdtype(array.dtype, jnp.integer) else jnp.float32)
    width = array.dtype.itemsize * 8
    if width == 64:  # as two halves, side by side
        array, width = jax.lax.bitcast_convert_type(array, jnp.uint32), 32
        array = array.reshape(*array.shape[:-2], -1) if array.ndim > 1 else array
    words = jax.lax.bitcast_convert_type(array, f"uint{width}").astype(jnp.uint32)
    # The place of an element is mixed with it before the sum, so that exchanged elements change the sum.
    place = jnp.zeros((), jnp.uint32)
    for axis in range(words.ndim):
        place = _mixed(place + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) + jnp.uint32(axis + 1))
    mixed = _mixed(words + _mixed(place))
    return jnp.stack([jnp.sum(mixed, dtype=jnp.uint32), jnp.sum(_mixed(mixed + jnp.uint32(1)), dtype=jnp.uint32)])


def _mixed(words: Any) -> Any:
    """Spreads every bit over all of a word."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


@dataclasses.dataclass(frozen=True)
class BatchSum:
    """A checksum of a batch, which may still be computed.

    Attributes:
        parts: For every leaf of the batch, what is known at once, and an array being copied to the host, or None.
    """

    parts: tuple[tuple[bytes, Any], ...]

    def text(self) -> str:
        """The checksum. Waits for it."""
        total = hashlib.blake2b(digest_size=8)
        for known, array in self.parts:
            total.update(known)
            if array is not None:
                total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return total.hexdigest()


def of_batch(batch: Any) -> BatchSum:
    """Starts the checksum of all of a batch. Does not wait for a device.

    Devices compute it: it does not depend on which of them hold the batch, of how many processes, or whether NumPy
    does.
    """
    leaves, structure = jax.tree.flatten(batch)
    return BatchSum(((str(structure).encode(), None), *map(_part, leaves)))


def _part(leaf: Any) -> tuple[bytes, Any]:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return _ADDRESS.sub("", repr(leaf)).encode(), None
    known = f"{leaf.dtype}{leaf.shape}".encode()
    if isinstance(leaf, jax.Array):
        return known, _on_its_way(_sums([jax.random.key_data(leaf) if _is_key(leaf) else leaf]))
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufc" and not hasattr(jnp, array.dtype.name):
        return known + array.tobytes(), None
    if array.dtype.kind == "c":
        array = np.stack([np.real(array), np.imag(array)])
    if array.dtype.itemsize == 8:  # a device may have no such numbers
        array = np.ascontiguousarray(array).reshape(array.shape or (1,)).view(np.uint32)
    return known, _on_its_way(_sums([array]))


def _on_its_way(array: jax.Array) -> jax.Array:
    in_turn(array).copy_to_host_async()
    return array
