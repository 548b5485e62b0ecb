"""The decoder: one module for every language model that predicts the next token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sonde import nnx, ops
from sonde.core import sow
from sonde.models.stack import KeyValueCache, new_cache, run_blocks
from sonde.models.tower import Tower


class Decoder(Tower):
    """A language model.

    Sites: `embedded`, those of every block under `blocks/<number>`, `norm`, `logits`. Arguments as for a `Tower`.
    """

    def __call__(self, tokens: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Predicts the next token at every position.

        Args:
            tokens: Integers, `(batch, length)`.
            mask: Boolean, `(batch, length)`: which tokens are not padding. Padding may be on either side; positions
                    are counted from the first token that is not padding.

        Returns:
            Logits, `(batch, length, vocabulary)`.
        """
        if mask is None:
            positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        else:
            positions = jnp.maximum(jnp.cumsum(mask.astype(jnp.int32), axis=1) - 1, 0)
        x, _ = run_blocks(self.blocks, self.config, self.embedded(tokens, positions), positions=positions, valid=mask)
        return self.readout(x)

    def extend(
        self,
        tokens: jax.Array,
        cache: KeyValueCache,
        *,
        positions: jax.Array,
        valid: jax.Array,
        text_length: jax.Array | None = None,
    ) -> tuple[Any, KeyValueCache]:
        """Reads tokens after those in a cache, and predicts what follows the last of them.

        Args:
            tokens: Integers, `(batch, length)`.
            cache: Keys and values of earlier tokens.
            positions: `(batch or 1, length)`: the position of every token in its text.
            valid: `(batch or 1, slots)`: which slots of the cache hold no padding.
            text_length: `(batch or 1, 1)`: the length of each text, if rotary frequencies depend on it; up to the
                last position if None.

        Returns:
            Logits, `(batch, vocabulary)`, and the new cache.
        """
        x = self.embedded(tokens, positions)
        x, new_keys_values = run_blocks(
            self.blocks, self.config, x, positions=positions, valid=valid, cache=cache, text_length=text_length
        )
        assert new_keys_values is not None
        return self.readout(x[:, -1:])[:, 0], new_keys_values

    def new_cache(self, batch: int, slots: int) -> KeyValueCache:
        """An empty cache for texts of at most `slots` tokens."""
        return new_cache(self.config, self.layers, batch, slots, self.dtype)

    def embedded(self, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        """The residual stream before the first block."""
        x = self.embed(tokens)
        if self.config.embedding_scale is not None:
            x = x * jnp.asarray(self.config.embedding_scale, x.dtype)
        if self.positions is not None:
            # Padding before a text has positions below zero, which have no embedding and affect no other token.
            x = x + self.positions(jnp.maximum(positions, 0) + self.config.position_offset)
        return sow(x, "embedded")

    def circuit_sites(self) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, int]]:
        """Where components write into the stream, where they read it, and the axes for heads, for `attribute_edges`.

        After `set_attributes(per_head=True)` each head is a sender; after `set_attributes(split_inputs=True)` the
        queries, keys and values of each head are receivers.

        Raises:
            ValueError: The blocks normalize the stream itself, so that it is no sum of what components write.
        """
        style, block = self.config.style, self.blocks[0] if isinstance(self.blocks, nnx.List) else self.blocks
        if style == "post":
            raise ValueError(
                f"{self.config.architecture}: norms after each addition make the stream no sum of what components "
                "write, so it has no edges between components"
            )
        heads: dict[str, int] = {}
        if style == "sandwich":  # what heads write goes through a norm together
            senders = ("embedded", "blocks/*/attn_norm", "blocks/*/mlp_norm")
        else:
            attention = "results" if block.attn.per_head else "out"
            senders = ("embedded", f"blocks/*/attn/{attention}", "blocks/*/mlp/out")
            heads |= {f"blocks/*/attn/{attention}": -2} if block.attn.per_head else {}
        read = ["blocks/*/attn_in"]
        if block.split_inputs:
            apart = {f"blocks/*/{name}": -2 for name in ("q_in", "k_in", "v_in")}
            read, heads = [*apart], heads | apart
        if block.split_inputs or block.norm2 is not None:
            read.append("blocks/*/mlp_in")
        return senders, (*read, f"blocks/{self.config.layers - 1}/out"), heads

    def readout(self, x: jax.Array) -> jax.Array:
        """Applies the last norm and the output layer to a residual stream.

        Args:
            x: `(..., width)`: of any layer, for a logit lens.
        """
        x = sow(self.norm(x), "norm")
        logits = self.embed.attend(x) if self.head is None else self.head(x)
        if self.head_bias is not None:
            logits = logits + self.head_bias
        return sow(ops.soft_cap(logits.astype(jnp.float32), self.config.logit_cap), "logits")
