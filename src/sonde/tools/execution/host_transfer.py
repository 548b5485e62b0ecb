"""Sends many small arrays to the host in a few copies, while the device continues.

A copy from an accelerator costs some fifty microseconds whatever its size, so the arrays of each dtype are first
concatenated on the device. That takes a small compiled program, which is worth it for what is fetched often.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def in_turn(tree: Any) -> Any:
    """Waits for a pytree of arrays, if a later program could overtake the program that computes them.

    CPU processes that run two programs in different orders wait for each other forever; accelerators keep the order.
    """
    if jax.process_count() > 1 and jax.default_backend() == "cpu":
        jax.block_until_ready(tree)
    return tree


def to_host(tree: Any) -> Any:
    """A pytree with NumPy arrays in place of JAX arrays.

    Arrays that several processes share are gathered, so every process must make this call.
    """

    def whole(x: jax.Array) -> Any:
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return x
        if x.is_fully_replicated:
            return x.addressable_data(0)
        from jax.experimental import multihost_utils

        return multihost_utils.process_allgather(x, tiled=True)

    return jax.device_get(jax.tree.map(whole, in_turn(tree)) if jax.process_count() > 1 else tree)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["arrays"], meta_fields=["whole", "types", "tree"])
@dataclasses.dataclass(frozen=True)
class Fetching:
    """A pytree of arrays on its way to the host.

    Attributes:
        arrays: The arrays, concatenated by dtype if `whole` is false.
        whole: Whether they travel one by one.
        types: Shape and dtype of the leaves.
        tree: The structure.
    """

    arrays: list[Any]
    whole: bool
    types: tuple[tuple[tuple[int, ...], Any], ...]
    tree: Any

    @classmethod
    def of(cls, tree: Any) -> Fetching:
        """Starts to send a pytree of arrays. Does not wait for them."""
        leaves, structure = jax.tree.flatten(in_turn(tree))
        types = tuple((x.shape, x.dtype) for x in leaves)
        # Arrays on different devices cannot be concatenated, and only numbers are worth it.
        places = {frozenset(x.sharding.device_set) if isinstance(x, jax.Array) else None for x in leaves}
        numbers = not any(jax.dtypes.issubdtype(dtype, jax.dtypes.extended) for _, dtype in types)
        together = len(leaves) > 1 and len(places) == 1 and None not in places and numbers
        arrays = in_turn(_end_to_end(leaves)) if together else leaves
        return cls(arrays, not together, types, structure).sent()

    @classmethod
    def packed(cls, tree: Any) -> Fetching:
        """The same inside a compiled program, for arrays of numbers; `sent` sends the result."""
        leaves, structure = jax.tree.flatten(tree)
        types = tuple((x.shape, x.dtype) for x in leaves)
        return cls(_end_to_end(leaves), False, types, structure)

    def sent(self) -> Fetching:
        """Starts to send the arrays. Does not wait for them."""
        for x in self.arrays:
            if isinstance(x, jax.Array):
                x.copy_to_host_async()
        return self

    def arrived(self) -> Any:
        """The pytree with NumPy arrays. Waits until they have arrived."""
        arrays = to_host(self.arrays)
        if self.whole:
            return jax.tree.unflatten(self.tree, arrays)
        of_dtype = dict(zip(_dtypes([dtype for _, dtype in self.types]), arrays))
        starts = dict.fromkeys(of_dtype, 0)
        leaves = []
        for shape, dtype in self.types:
            start = starts[dtype]
            starts[dtype] = stop = start + int(np.prod(shape, dtype=np.int64))
            leaves.append(of_dtype[dtype][start:stop].reshape(shape))
        return jax.tree.unflatten(self.tree, leaves)


def _dtypes(dtypes: Sequence[Any]) -> list[Any]:
    """Each once, in order."""
    return list(dict.fromkeys(dtypes))


@jax.jit
def _end_to_end(leaves: Sequence[Any]) -> list[Any]:
    return [
        jnp.concatenate([jnp.ravel(x) for x in leaves if x.dtype == dtype])
        for dtype in _dtypes([x.dtype for x in leaves])
    ]
