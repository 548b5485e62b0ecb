"""The encoder: one module for texts that are read as a whole: BERT, RoBERTa, MiniLM, and CLIP's texts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sonde import nnx
from sonde.core.sow import sow
from sonde.models.config import Config, activation
from sonde.models.stack import Layers, new_blocks, run_blocks


class MaskedHead(nnx.Module):
    """The head that fills in masked tokens: a map, a nonlinearity, a norm, and the table of embeddings."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs, dtype: Any):
        self.dense = nnx.Linear(config.width, config.width, rngs=rngs, param_dtype=dtype)
        self.norm: Any = config.new_norm(config.width, rngs=rngs, param_dtype=dtype)
        self.bias = nnx.Param(jnp.zeros((config.vocabulary,), dtype))
        self.activation = activation(config.activation)

    def __call__(self, x: jax.Array, embed: nnx.Embed) -> jax.Array:
        """Logits over all tokens."""
        return embed.attend(self.norm(self.activation(self.dense(x)))) + self.bias


class Encoder(nnx.Module):
    """A model that reads texts.

    Sites: `embedded`, those of every block under `blocks/<number>`, `norm` where there is a last norm, `pooled`, and
    `logits` where there is a head.

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
        self.layers = layers
        self.tokenizer = nnx.static(tokenizer)
        options: dict[str, Any] = {"rngs": rngs, "param_dtype": dtype}
        self.embed = nnx.Embed(config.vocabulary, config.width, **options)
        self.positions = nnx.Embed(config.positions, config.width, **options)
        types = nnx.Embed(config.types, config.width, **options) if config.types else None
        self.types: nnx.Embed | None = nnx.data(types)
        embed_norm = config.new_norm(config.width, **options) if config.embedding_norm else None
        self.embed_norm: Any = nnx.data(embed_norm)
        self.blocks = new_blocks(config, layers, rngs=rngs, dtype=dtype)
        self.norm: Any = nnx.data(config.new_norm(config.width, **options) if config.final_norm else None)
        self.pooler: nnx.Linear | None = nnx.data(
            nnx.Linear(config.width, config.width, **options) if config.pooler else None
        )
        self.head: Any = nnx.data(_head(config, rngs, dtype))

    @property
    def dtype(self) -> Any:
        """What the model is computed with."""
        return self.embed.dtype

    def __call__(
        self, tokens: jax.Array, *, mask: jax.Array | None = None, types: jax.Array | None = None
    ) -> jax.Array:
        """Reads texts.

        Args:
            tokens: integers, `(batch, length)`.
            mask: boolean, `(batch, length)`: which tokens are no padding, which comes last.
            types: integers, `(batch, length)`: the segment of every token, for models that have segments.

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

    def pooled(self, hidden: jax.Array) -> jax.Array:
        """The vector of a text that the pooler makes of its first token, `(batch, width)`.

        Raises:
            ValueError: the model has no pooler.
        """
        if self.pooler is None:
            raise ValueError(f"this {self.config.architecture} model has no pooler.")
        return sow(jnp.tanh(self.pooler(hidden[:, 0])), "pooled")


def _head(config: Config, rngs: nnx.Rngs, dtype: Any) -> nnx.Module | None:
    match config.head:
        case "masked":
            return MaskedHead(config, rngs=rngs, dtype=dtype)
        case "classes":
            return nnx.Linear(config.width, config.classes, rngs=rngs, param_dtype=dtype)
        case "projection":
            return nnx.Linear(config.width, config.classes, use_bias=False, rngs=rngs, param_dtype=dtype)
        case _:
            return None
