"""A table of vectors: looked up by index, or compared with queries.

Sharp edge: an index outside the table gives NaN, as in `jnp.take`, and not the nearest row, so a wrong vocabulary size
shows at once. With a table of a single row every index gives that row.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from sonde.ops.checks import expect_integers, expect_size
from sonde.ops.dense import given
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_all, promote_dtype
from sonde.ops.sharding import OutSharding, spec_of_rows


def embed(
    indices: jax.Array,
    table: jax.Array,
    *,
    dtype: Dtype | None = None,
    promote_dtype: PromoteDtype | None = promote_dtype,
    out_sharding: OutSharding | None = None,
) -> jax.Array:
    """Looks up rows of a table.

    `indices` are integers of any shape, `table` is `(rows, features)`; the result is `(*indices.shape, features)`. A
    `dtype` of None keeps the table's. Without `out_sharding` the result is sharded as the indices and the features are.

    Raises:
        LayerInputError: `indices` are not integers.

    Example:
        >>> import jax.numpy as jnp
        >>> embed(jnp.array([2, 0]), jnp.arange(6.0).reshape(3, 2))
        Array([[4., 5.],
               [0., 1.]], dtype=float32)
    """
    indices = jnp.asarray(indices)
    expect_integers(indices, argument="inputs")

    def cast(x: jax.Array) -> jax.Array:
        return x if promote_dtype is None else promote_dtype((x,), dtype=dtype, inexact=False)[0]

    # Cast the smaller of the two: the table, or the rows that are looked up.
    table_first = indices.size >= table.shape[0]
    if out_sharding is None:
        out_sharding = spec_of_rows(indices, table)
    if table_first:
        table = cast(table)
    # Flax broadcasts a single row and does not look at the indices.
    if table.shape[0] == 1:
        rows = jnp.broadcast_to(jnp.reshape(table, (1,) * indices.ndim + (-1,)), (*indices.shape, table.shape[-1]))
    elif out_sharding is not None:
        rows = table.at[indices].get(mode="fill", fill_value=jnp.nan, out_sharding=out_sharding)
    else:
        rows = jnp.take(table, indices, axis=0)
    return rows if table_first else cast(rows)


def attend(
    query: jax.Array,
    table: jax.Array,
    *,
    dtype: Dtype | None = None,
    promote_dtype: PromoteDtype | None = promote_dtype,
    out_sharding: OutSharding | None = None,
) -> jax.Array:
    """Scores queries against every row: the logits of a model with tied weights.

    `query` is `(..., features)`, `table` is `(rows, features)`; the result is `(..., rows)`.

    Raises:
        LayerInputError: The last axis of `query` is not as long as the rows.

    Example:
        >>> import jax.numpy as jnp
        >>> attend(jnp.ones((5, 2)), jnp.ones((3, 2))).shape
        (5, 3)
    """
    expect_size(jnp.asarray(query), axis=-1, size=table.shape[-1], argument="query", meaning="features")
    query, table = promote_all(promote_dtype, (query, table), dtype)
    return lax.dot_general(query, table, (((query.ndim - 1,), (1,)), ((), ())), **given(out_sharding=out_sharding))
