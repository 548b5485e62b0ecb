"""The vision tower: one module for models that read images as patches: ViT, and CLIP's images."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sonde import nnx
from sonde.core.sow import sow
from sonde.errors import LayerInputError
from sonde.models.config import Config
from sonde.models.stack import Layers, new_blocks, run_blocks


class Vision(nnx.Module):
    """A model that reads images.

    Sites: `embedded`, those of every block under `blocks/<number>`, `norm`, and `logits` where there is a head.

    Args:
        config: what it is made of.
        layers: `"list"` or `"scan"`.
        rngs: random streams for the initial parameters.
        dtype: what parameters are stored in and computed with.
        tokenizer: ignored; images have none.
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
        del tokenizer
        self.config = config
        self.layers = layers
        options: dict[str, Any] = {"rngs": rngs, "param_dtype": dtype}
        patch = (config.patch, config.patch)
        self.patches = nnx.Conv(
            3, config.width, patch, strides=patch, padding="VALID", use_bias=config.patch_bias, **options
        )
        self.first = nnx.Param(jnp.zeros((config.width,), dtype))
        count = (config.image // config.patch) ** 2 + 1
        self.positions = nnx.Embed(count, config.width, **options)
        embed_norm = config.new_norm(config.width, **options) if config.embedding_norm else None
        self.embed_norm: Any = nnx.data(embed_norm)
        self.blocks = new_blocks(config, layers, rngs=rngs, dtype=dtype)
        self.norm: Any = config.new_norm(config.width, **options)
        self.pooler: nnx.Linear | None = nnx.data(
            nnx.Linear(config.width, config.width, **options) if config.pooler else None
        )
        head = None
        if config.head in ("classes", "projection"):
            head = nnx.Linear(config.width, config.classes, use_bias=config.head == "classes", **options)
        self.head: nnx.Linear | None = nnx.data(head)

    @property
    def dtype(self) -> Any:
        """What the model is computed with."""
        return self.positions.dtype

    def __call__(self, images: jax.Array) -> jax.Array:
        """Reads images.

        Args:
            images: `(batch, height, width, 3)`, scaled as the model was trained.

        Returns:
            A vector for the first token and every patch, `(batch, 1 + patches, width)`; logits, `(batch, classes)`,
            from a classifier; vectors, `(batch, features)`, from a tower with a projection.
        """
        x = self.hidden(images)
        return x if self.head is None else sow(self.head(x[:, 0]), "logits")

    def hidden(self, images: jax.Array) -> jax.Array:
        """A vector for the first token and every patch, `(batch, 1 + patches, width)`."""
        size = self.config.image
        if images.ndim != 4 or images.shape[1:] != (size, size, 3):
            raise LayerInputError(
                f"images must be (batch, {size}, {size}, 3), channels last, got {tuple(images.shape)}.", place="Vision"
            )
        patches = self.patches(images)
        patches = patches.reshape(patches.shape[0], -1, patches.shape[-1])
        first = jnp.broadcast_to(self.first[...], (patches.shape[0], 1, patches.shape[-1]))
        x = jnp.concatenate([first, patches], axis=1) + self.positions.embedding[...]
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        x = sow(x, "embedded")
        positions = jnp.arange(x.shape[1], dtype=jnp.int32)[None]
        x, _ = run_blocks(self.blocks, self.config, x, positions=positions)
        return sow(self.norm(x), "norm")

    def pooled(self, hidden: jax.Array) -> jax.Array:
        """The vector that the pooler makes of the first token, `(batch, width)`.

        Raises:
            ValueError: the model has no pooler.
        """
        if self.pooler is None:
            raise ValueError(f"this {self.config.architecture} model has no pooler.")
        return sow(jnp.tanh(self.pooler(hidden[:, 0])), "pooled")
