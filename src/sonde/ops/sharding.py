"""Shardings on meshes with explicit axes, where JAX requires that the operands of an operation are sharded alike."""

from __future__ import annotations

from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

OutSharding = NamedSharding | PartitionSpec
"""The sharding that JAX is asked to give a result, under explicit sharding."""


def spec_of(x: jax.Array) -> tuple[Any, ...]:
    """The mesh axes that each axis of an array is explicitly sharded over; None for those that are not."""
    spec = tuple(jax.typeof(x).sharding.spec)
    return (*spec, *(None,) * (x.ndim - len(spec)))


def sharded_as(x: jax.Array, other: jax.Array) -> jax.Array:
    """An array with the explicit sharding of another one of the same shape; unchanged if there is none.

    Example:
        >>> import jax.numpy as jnp
        >>> sharded_as(jnp.zeros(2), jnp.ones(2))
        Array([0., 0.], dtype=float32)
    """
    spec = spec_of(other)
    return x if spec_of(x) == spec else jax.sharding.reshard(x, PartitionSpec(*spec))


def spec_of_rows(indices: jax.Array, table: jax.Array) -> PartitionSpec | None:
    """How rows that are looked up in a table are sharded: as the indices, then as the table's features.

    None if neither is explicitly sharded, or if both are over the same mesh axes: then the caller must choose.
    """
    spec = (*spec_of(indices), *spec_of(table)[1:])
    used = [axis for entry in spec for axis in ((entry,) if isinstance(entry, str) else entry or ())]
    is_sharded = bool(used) or any(spec_of(table))
    return PartitionSpec(*spec) if is_sharded and len(set(used)) == len(used) else None
