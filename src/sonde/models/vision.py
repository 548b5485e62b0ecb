"""The vision tower: one module for models that read images as patches: ViT, and CLIP's image tower."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from sonde.core import sow
from sonde.errors import LayerInputError
from sonde.models.stack import run_blocks
from sonde.models.tower import Tower


class Vision(Tower):
    """A model that reads images.

    Sites: `embedded`, those of every block under `blocks/<number>`, `norm`, and `logits` where there is a head.
    Arguments as for a `Tower`.
    """

    def __call__(self, images: jax.Array) -> jax.Array:
        """Reads images.

        Args:
            images: `(batch, height, width, channels)`, scaled as the model was trained.

        Returns:
            A vector for the first token and every patch, `(batch, 1 + patches, width)`; logits, `(batch, classes)`,
            from a classifier; vectors, `(batch, features)`, from a tower with a projection.
        """
        x = self.hidden(images)
        return x if self.head is None else sow(self.head(self.summary(x)), "logits")

    def summary(self, hidden: jax.Array) -> jax.Array:
        """The vector of an image, `(batch, width)`: that of the first token, normalized if `hidden` is not."""
        first = hidden[:, 0]
        return sow(self.norm(first), "norm") if self.config.norms_first else first

    def hidden(self, images: jax.Array) -> jax.Array:
        """A vector for the first token and every patch, `(batch, 1 + patches, width)`; CLIP's are not normalized."""
        expected = (self.config.image, self.config.image, self.config.channels)
        if images.ndim != 4 or images.shape[1:] != expected:
            raise LayerInputError(
                f"images must be (batch, {', '.join(map(str, expected))}), channels last, got {tuple(images.shape)}.",
                place="Vision",
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
        return x if self.config.norms_first else sow(self.norm(x), "norm")
