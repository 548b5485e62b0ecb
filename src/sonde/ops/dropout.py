"""Dropout: set a random part to zero and scale the rest, so that the mean stays the same."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from sonde.errors import LayerInputError
from sonde.ops.sharding import sharded_as


def keep_mask(rng: jax.Array, rate: float, shape: Sequence[int]) -> jax.Array:
    """A mask that is True for kept elements: each with probability `1 - rate`."""
    return jax.random.bernoulli(rng, 1.0 - rate, tuple(shape))


def dropout(inputs: jax.Array, rng: jax.Array | None, *, rate: float, broadcast_dims: Sequence[int] = ()) -> jax.Array:
    """Drops each element with probability `rate`, scales the others by `1 / (1 - rate)`.

    Args:
        inputs: Any array.
        rng: Random key; may be None if the rate is 0 or 1, where nothing is random.
        rate: The probability of being dropped, from 0 to 1.
        broadcast_dims: Along these axes, all or none are dropped.

    Returns:
        An array shaped like the inputs.

    Raises:
        LayerInputError: `rate` is not from 0 to 1, or a key is needed and missing.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> y = dropout(jnp.ones(1000), jax.random.key(0), rate=0.5)
        >>> sorted(set(y.tolist()))
        [0.0, 2.0]
    """
    if not 0.0 <= rate <= 1.0:
        raise LayerInputError(f"`rate` must be a probability, from 0 to 1, got {rate}.")
    if rate == 0.0:
        return inputs
    # With nothing kept, the scale would be 1 / 0.
    if rate == 1.0:
        return jnp.zeros_like(inputs)
    if rng is None:
        raise LayerInputError(f"dropping with rate={rate} needs a random key, got None.")
    shape = list(inputs.shape)
    for axis in broadcast_dims:
        shape[axis] = 1
    keep = jnp.broadcast_to(keep_mask(rng, rate, shape), inputs.shape)
    return lax.select(sharded_as(keep, inputs), inputs / (1.0 - rate), jnp.zeros_like(inputs))
