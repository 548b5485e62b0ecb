"""Many small arrays on their way to the host in a few copies, while the device goes on.

A copy from an accelerator costs some fifty microseconds whatever its size, so arrays are put end to end first, by
dtype, where they are. That is a small compiled program of its own: worth it for what is fetched again and again.
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
    """Waits for a pytree of arrays where a later program could overtake the one that computes them.

    Processes on CPUs that run two programs in a different order wait for one another forever; accelerators keep order.
    """
    if jax.process_count() > 1 and jax.default_backend() == "cpu":
        jax.block_until_ready(tree)
    return tree


def to_host(tree: Any) -> Any:
    """A pytree with NumPy arrays in place of JAX's.

    Arrays that several processes share are gathered: every process must ask for them.
    """

    def whole(x: Any) -> Any:
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
    """A pytree of arrays that has set out for the host.

    Attributes:
        arrays: The arrays, end to end by dtype if `whole` is false.
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
        """Sends a pytree of arrays off. Does not wait for them."""
        leaves, structure = jax.tree.flatten(in_turn(tree))
        types = tuple((x.shape, x.dtype) for x in leaves)
        # Arrays on different devices cannot be put together, and numbers are all that there is to gain from.
        places = {frozenset(x.sharding.device_set) if isinstance(x, jax.Array) else None for x in leaves}
        numbers = not any(jax.dtypes.issubdtype(dtype, jax.dtypes.extended) for _, dtype in types)
        together = len(leaves) > 1 and len(places) == 1 and None not in places and numbers
        arrays = in_turn(_end_to_end(leaves)) if together else leaves
        return cls(arrays, not together, types, structure).sent()

    @classmethod
    def packed(cls, tree: Any) -> Fetching:
        """The same inside a compiled program, of arrays of numbers; `sent` sends off what comes out of it."""
        leaves, structure = jax.tree.flatten(tree)
        types = tuple((x.shape, x.dtype) for x in leaves)
        return cls(_end_to_end(leaves), False, types, structure)

    def sent(self) -> Fetching:
        """Sends the arrays off. Does not wait for them."""
        for x in self.arrays:
            if isinstance(x, jax.Array):
                x.copy_to_host_async()
        return self

    def arrived(self) -> Any:
        """The pytree with NumPy arrays. Waits for what is not there yet."""
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
