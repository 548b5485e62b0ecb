"""The encoder: one module for texts that are read as a whole: BERT, RoBERTa, MiniLM, and CLIP's text tower."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sonde.core import sow
from sonde.models.stack import run_blocks
from sonde.models.tower import Tower


class Encoder(Tower):
    """A model that reads texts.

    Sites: `embedded`, those of every block under `blocks/<number>`, `norm` where there is a last norm, `pooled`, and
    `logits` where there is a head. Arguments as for a `Tower`.
    """

    def __call__(
        self, tokens: jax.Array, *, mask: jax.Array | None = None, types: jax.Array | None = None
    ) -> jax.Array:
        """Reads texts.

        Args:
            tokens: Integers, `(batch, length)`.
            mask: Boolean, `(batch, length)`: which tokens are not padding. Padding comes last.
            types: Integers, `(batch, length)`: the segment of every token, for models that have segments.

        Returns:
            A vector for every token, `(batch, length, width)`; logits, `(batch, length, vocabulary)`, from a model that
            fills in masked tokens; logits, `(batch, classes)`, from a classifier.
        """
        x = self.hidden(tokens, mask=mask, types=types)
        match self.config.head:
            case "masked":
                return sow(self.head(x, self.embed), "logits")
            case "classes":
                return sow(self.head(self.pooled(x)), "logits")
            case _:
                return x

    def hidden(self, tokens: jax.Array, *, mask: jax.Array | None = None, types: jax.Array | None = None) -> jax.Array:
        """A vector for every token, `(batch, length, width)`; arguments as for a call."""
        positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
        x = self.embed(tokens) + self.positions(positions + self.config.position_offset)
        if self.types is not None:
            x = x + self.types(jnp.zeros_like(tokens) if types is None else types)
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        x = sow(x, "embedded")
        x, _ = run_blocks(self.blocks, self.config, x, positions=positions, valid=mask)
        return x if self.norm is None else sow(self.norm(x), "norm")

    def follows(self, hidden: jax.Array) -> jax.Array:
        """Logits, `(batch, 2)`: whether the second segment of a text follows the first, or not.

        Args:
            hidden: Vectors of all tokens, `(batch, length, width)`.

        Raises:
            ValueError: The model was not loaded as `BertForPreTraining`.
        """
        if self.pairs is None:
            raise ValueError(f"this {self.config.architecture} model has no head for pairs of segments.")
        return self.pairs(self.pooled(hidden))
