"""`Dropout`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.linen.modules.methods import compact
from sonde.linen.modules.module import Module, merge_param


class Dropout(Module):
    """Sets a random part of the inputs to zero and scales the rest.

    Attributes:
        rate: The probability of being dropped.
        broadcast_dims: Axes along which all or none are dropped.
        deterministic: Whether to drop nothing; may be given to the call instead.
        rng_collection: The random stream.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> drop = nn.Dropout(0.5, deterministic=False)
        >>> y = drop.apply({}, jnp.ones(100), rngs={"dropout": jax.random.key(0)})
        >>> sorted(set(y.tolist()))
        [0.0, 2.0]
    """

    rate: float
    broadcast_dims: Sequence[int] = ()
    deterministic: bool | None = None
    rng_collection: str = "dropout"

    @compact
    def __call__(self, inputs: jax.Array, deterministic: bool | None = None, rng: jax.Array | None = None) -> Any:
        """Drops elements of the inputs.

        Args:
            inputs: Any array.
            deterministic: As the field of that name.
            rng: The random key; one of the stream `rng_collection` if None.
        """
        if merge_param("deterministic", self.deterministic, deterministic) or not self.rate:
            return inputs
        key: Any = rng
        # When everything is dropped, nothing is random and no key is needed.
        if key is None and self.rate < 1.0:
            key = self.make_rng(self.rng_collection)
        return ops.dropout(jnp.asarray(inputs), key, rate=self.rate, broadcast_dims=self.broadcast_dims)
