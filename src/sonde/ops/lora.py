"""Low-rank adaptation: a small correction to a frozen linear map."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sonde.ops.checks import expect_size
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_all, promote_dtype


def low_rank(
    x: jax.Array,
    a: jax.Array,
    b: jax.Array,
    *,
    dtype: Dtype | None = None,
    promote_dtype: PromoteDtype | None = promote_dtype,
) -> jax.Array:
    """Multiplies by a matrix of low rank, given as two factors.

    `x` is `(..., in)`; the factors are `(in, rank)` and `(rank, out)`; the result is `(..., out)`.

    Raises:
        LayerInputError: the last axis of `x` is not `in` long.

    Example:
        >>> import jax.numpy as jnp
        >>> low_rank(jnp.ones((2, 3)), jnp.ones((3, 1)), jnp.ones((1, 4))).shape
        (2, 4)
    """
    expect_size(jnp.asarray(x), axis=-1, size=a.shape[0], argument="x", meaning="input features")
    x, a, b = promote_all(promote_dtype, (x, a, b), dtype)
    return x @ a @ b
