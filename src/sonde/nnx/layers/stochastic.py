"""Dropout."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from sonde import ops
from sonde.errors import LayerInputError
from sonde.nnx.layers.parameters import chosen
from sonde.nnx.layers.place import names_its_place
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.rngs import Rngs, RngStream


class Dropout(Module):
    """Sets a random part of its inputs to zero while training.

    Args:
        rate: The probability of being dropped.
        broadcast_dims: Axes along which inputs are dropped all together or not at all.
        deterministic: Drop nothing; `train()`, `eval()` and the call can override it.
        rng_collection: The random stream to draw from.
        rngs: Random streams, from which the layer forks its own; or None, to pass them to the call.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        >>> sorted(set(layer(jnp.ones(100)).tolist()))
        [0.0, 2.0]
        >>> layer.eval()
        >>> bool((layer(jnp.ones(100)) == 1).all())
        True
    """

    def __init__(
        self,
        rate: float,
        *,
        broadcast_dims: Sequence[int] = (),
        deterministic: bool = False,
        rng_collection: str = "dropout",
        rngs: Rngs | RngStream | None = None,
    ):
        self.rate = rate
        self.broadcast_dims = tuple(broadcast_dims)
        self.deterministic = deterministic
        self.rng_collection = rng_collection
        self.rngs = data(_own_stream(rngs, rng_collection))

    @names_its_place
    def __call__(
        self,
        inputs: jax.Array,
        *,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | jax.Array | None = None,
    ) -> jax.Array:
        """Applies dropout to any array.

        Args:
            inputs: The array.
            deterministic: Overrides the layer's own setting.
            rngs: Random streams, one stream or a key, in place of the layer's own stream.
        """
        if chosen(self, "deterministic", deterministic, self.deterministic) or self.rate == 0.0:
            return inputs
        if self.rate == 1.0:
            return ops.dropout(inputs, None, rate=1.0)
        source = rngs if rngs is not None else self.rngs
        if source is None:
            raise LayerInputError(
                f"dropping with rate={self.rate} draws random numbers, but neither the constructor nor the call has "
                "`rngs` to draw from. Write nnx.Dropout(..., rngs=rngs) or dropout(x, rngs=rngs)."
            )
        key = next_key(source, self.rng_collection)
        return ops.dropout(inputs, key, rate=self.rate, broadcast_dims=self.broadcast_dims)

    # `nnx.view_info` prints what the docstring says of the arguments, and its output is that of Flax.
    def set_view(self, deterministic: bool | None = None) -> None:
        """Sets what `nnx.view` may set.

        Args:
            deterministic: if True, disables dropout masking.
        """
        if deterministic is not None:
            self.deterministic = deterministic


def next_key(source: Rngs | RngStream | jax.Array, collection: str) -> jax.Array:
    """The next key of random streams or of one stream; a key is returned as it is."""
    if isinstance(source, Rngs):
        return source[collection]()
    if isinstance(source, RngStream):
        return source()
    if isinstance(source, jax.Array):
        return source
    raise LayerInputError(f"`rngs` must be an nnx.Rngs, an nnx.RngStream or a random key, got {type(source).__name__}.")


def _own_stream(rngs: Rngs | RngStream | None, collection: str) -> RngStream | None:
    if rngs is None:
        return None
    if isinstance(rngs, Rngs):
        return rngs[collection].fork()
    if isinstance(rngs, RngStream):
        return rngs.fork()
    raise TypeError(f"Dropout: `rngs` takes an nnx.Rngs, an nnx.RngStream or None, got {type(rngs).__name__}.")
