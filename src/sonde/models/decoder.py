"""The decoder: one module for every language model that predicts the next token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sonde import nnx, ops
from sonde.core.sow import sow
from sonde.models.config import Config
from sonde.models.stack import Cache, Layers, new_blocks, new_cache, run_blocks


class Decoder(nnx.Module):
    """A language model.

    Sites: `embedded`, those of every block under `blocks/<number>`, `norm`, `logits`.

    Args:
        config: what it is made of.
        layers: `"list"` or `"scan"`.
        rngs: random streams for the initial parameters.
        dtype: what parameters are stored in and computed with.
        tokenizer: turns texts into tokens and back, if there is one.
    """

    def __init__(
        self,
        config: Config,
        *,
        layers: Layers = "list",
        rngs: nnx.Rngs,
        dtype: Any = jnp.float32,
        tokenizer: Any = None,
    ):
        self.config = config
        self.layers: Layers = layers
        self.tokenizer = nnx.static(tokenizer)
        options: dict[str, Any] = {"rngs": rngs, "param_dtype": dtype}
        self.embed = nnx.Embed(config.vocabulary, config.width, **options)
        positions = nnx.Embed(config.positions, config.width, **options) if config.positions else None
        self.positions: nnx.Embed | None = nnx.data(positions)
        self.blocks = new_blocks(config, layers, rngs=rngs, dtype=dtype)
        self.norm: Any = config.new_norm(config.width, rngs=rngs, param_dtype=dtype)
        head = (
            None if config.tied else nnx.Linear(config.width, config.vocabulary, use_bias=config.head_bias, **options)
        )
        self.head: nnx.Linear | None = nnx.data(head)

    @property
    def dtype(self) -> Any:
        """What the model is computed with."""
        return self.embed.dtype

    def __call__(self, tokens: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Predicts the next token at every position.

        Args:
            tokens: integers, `(batch, length)`.
            mask: boolean, `(batch, length)`: which tokens are no padding. Padding may be on either side; positions
                are counted from the first token that is none.

        Returns:
            Logits, `(batch, length, vocabulary)`.
        """
        if mask is None:
            positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        else:
            positions = jnp.maximum(jnp.cumsum(mask.astype(jnp.int32), axis=1) - 1, 0)
        x, _ = run_blocks(self.blocks, self.config, self.embedded(tokens, positions), positions=positions, valid=mask)
        return self.readout(x)

    def extend(self, tokens: jax.Array, cache: Cache, *, positions: jax.Array, valid: jax.Array) -> tuple[Any, Cache]:
        """Reads tokens after those in a cache, and predicts what follows the last of them.

        Args:
            tokens: integers, `(batch, length)`.
            cache: what earlier tokens left.
            positions: `(batch or 1, length)`: the position of every token in its text.
            valid: `(batch or 1, slots)`: which slots of the cache hold no padding.

        Returns:
            Logits, `(batch, vocabulary)`, and the new cache.
        """
        x = self.embedded(tokens, positions)
        x, new = run_blocks(self.blocks, self.config, x, positions=positions, valid=valid, cache=cache)
        assert new is not None
        return self.readout(x[:, -1:])[:, 0], new

    def new_cache(self, batch: int, slots: int) -> Cache:
        """An empty cache for texts of at most `slots` tokens."""
        return new_cache(self.config, self.layers, batch, slots, self.dtype)

    def embedded(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        """The residual stream before the first block."""
        x = self.embed(tokens)
        if self.config.embedding_scale is not None:
            x = x * jnp.asarray(self.config.embedding_scale, x.dtype)
        if self.positions is not None:
            # Padding before a text has positions below zero, which have no embedding and matter to no other token.
            x = x + self.positions(jnp.maximum(positions, 0) + self.config.position_offset)
        return sow(x, "embedded")

    def readout(self, x: jax.Array) -> jax.Array:
        """The logits that the last norm and the output layer make of a residual stream.

        Args:
            x: `(..., width)`: of any layer, for a logit lens.
        """
        x = sow(self.norm(x), "norm")
        logits = self.embed.attend(x) if self.head is None else self.head(x)
        return sow(ops.soft_cap(logits.astype(jnp.float32), self.config.logit_cap), "logits")
