"""A tower: embeddings, a stack of blocks, and a head, made from a config.

Decoders, encoders and vision models are towers that differ in how they are called.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from sonde import nnx
from sonde.core import sow
from sonde.models.config import Config, activation
from sonde.models.stack import Layers, new_blocks
from sonde.models.tokens import Tokenizer


class Tower(nnx.Module):
    """The base of decoders, encoders and vision models.

    Sites: `pooled` where there is a pooler; see the subclasses for the others.

    Args:
        config: The description of the model.
        layers: `"list"` or `"scan"`.
        rngs: Random streams for the initial parameters.
        dtype: The dtype of parameters and computations.
        tokenizer: Turns texts into tokens and back, if there is one.
    """

    def __init__(
        self,
        config: Config,
        *,
        layers: Layers = "list",
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        tokenizer: Tokenizer | None = None,
    ):
        self.config = config
        self.layers: Layers = layers
        self.tokenizer = nnx.static(tokenizer)
        options: dict[str, Any] = {"rngs": rngs, "param_dtype": dtype}
        width, data = config.width, nnx.data
        if config.image:
            patch = (config.patch, config.patch)
            self.patches = nnx.Conv(
                config.channels, width, patch, strides=patch, padding="VALID", use_bias=config.patch_bias, **options
            )
            self.first = nnx.Param(jnp.zeros((width,), dtype))
        else:
            self.embed = nnx.Embed(config.vocabulary, width, **options)
        positions = config.positions + ((config.image // config.patch) ** 2 + 1 if config.image else 0)
        self.positions: Any = data(nnx.Embed(positions, width, **options) if positions else None)
        self.types: nnx.Embed | None = data(nnx.Embed(config.types, width, **options) if config.types else None)
        self.embed_norm: Any = data(config.new_norm(width, **options) if config.embedding_norm else None)
        self.blocks = new_blocks(config, layers, rngs=rngs, dtype=dtype)
        self.norm: Any = data(config.new_norm(width, **options) if config.final_norm else None)
        self.pooler: nnx.Linear | None = data(nnx.Linear(width, width, **options) if config.pooler else None)
        self.head: Any = data(_head(config, options))
        self.pairs: nnx.Linear | None = data(nnx.Linear(width, 2, **options) if config.pairs else None)
        apart = config.head == "logits" and config.tied and config.head_bias
        self.head_bias: Any = data(nnx.Param(jnp.zeros((config.vocabulary,), dtype)) if apart else None)

    @property
    def dtype(self) -> Any:
        """The dtype of computations."""
        return (self.patches if self.config.image else self.embed).param_dtype

    def pooled(self, hidden: jax.Array) -> jax.Array:
        """The pooler's output for the first token, `(batch, width)`.

        Args:
            hidden: Vectors of all tokens or patches, `(batch, length, width)`.

        Raises:
            ValueError: The model has no pooler.
        """
        if self.pooler is None:
            raise ValueError(f"this {self.config.architecture} model has no pooler.")
        return sow(jnp.tanh(self.pooler(hidden[:, 0])), "pooled")


class MaskedHead(nnx.Module):
    """The head that fills in masked tokens: a map, a nonlinearity, a norm, and a table, by default of embeddings."""

    def __init__(self, config: Config, *, rngs: nnx.Rngs, param_dtype: DTypeLike):
        options: dict[str, Any] = {"rngs": rngs, "param_dtype": param_dtype}
        width, count = config.width, config.vocabulary
        self.dense = nnx.Linear(width, width, **options)
        self.norm: Any = config.new_norm(width, **options)
        table = None if config.tied else nnx.Linear(width, count, use_bias=False, **options)
        self.table: nnx.Linear | None = nnx.data(table)
        self.bias = nnx.Param(jnp.zeros((count,), param_dtype))
        self.activation = activation(config.head_activation or config.activation)

    def __call__(self, x: jax.Array, embed: nnx.Embed) -> jax.Array:
        """Logits over all tokens."""
        x = self.norm(self.activation(self.dense(x)))
        return (embed.attend(x) if self.table is None else self.table(x)) + self.bias


def _head(config: Config, options: dict[str, Any]) -> nnx.Module | None:
    match config.head:
        case "logits" if not config.tied:
            return nnx.Linear(config.width, config.vocabulary, use_bias=config.head_bias, **options)
        case "masked":
            return MaskedHead(config, **options)
        case "classes" | "projection":
            return nnx.Linear(config.width, config.classes, use_bias=config.head == "classes", **options)
        case _:
            return None
