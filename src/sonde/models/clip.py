"""CLIP: a tower for images and one for texts whose vectors are compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from sonde import nnx
from sonde.core import sow
from sonde.models.config import Config
from sonde.models.encoder import Encoder
from sonde.models.stack import Layers
from sonde.models.tokens import Tokenizer
from sonde.models.vision import Vision


@dataclasses.dataclass(frozen=True)
class TowersConfig:
    """The two towers of a CLIP model.

    Attributes:
        architecture: The name of the architecture.
        image: The tower for images.
        text: The tower for texts.
        source: The checkpoint's own config, as it will be saved.
    """

    architecture: str
    image: Config
    text: Config
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict, compare=False, repr=False)


class TextTower(Encoder):
    """CLIP's tower for texts: the vector at the token that ends a text, projected."""

    def __call__(  # type: ignore[override]
        self, tokens: jax.Array, *, mask: jax.Array | None = None, types: jax.Array | None = None
    ) -> jax.Array:
        """Vectors of texts, `(batch, features)`; of every token, `(batch, length, width)`, without a projection."""
        x = self.hidden(tokens, mask=mask, types=types)
        if self.head is None:
            return x
        # Early checkpoints say that texts end with token 2; they end with the largest one.
        end = self.config.end_token
        at = tokens.argmax(-1) if end in (None, 2) else (tokens == end).argmax(-1)
        return sow(self.head(jnp.take_along_axis(x, at[:, None, None], axis=1)[:, 0]), "logits")


class CLIP(nnx.Module):
    """Images and texts in one space.

    Sites: those of the towers under `image` and `text`, and `logits`.

    Args:
        config: The description of the model.
        layers: `"list"` or `"scan"`.
        rngs: Random streams for the initial parameters.
        dtype: The dtype of parameters and computations.
        tokenizer: Turns texts into tokens and back, if there is one.
    """

    def __init__(
        self,
        config: TowersConfig,
        *,
        layers: Layers = "list",
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        tokenizer: Tokenizer | None = None,
    ):
        self.config = config
        self.layers = layers
        self.tokenizer = nnx.static(tokenizer)
        self.image = Vision(config.image, layers=layers, rngs=rngs, dtype=dtype)
        self.text = TextTower(config.text, layers=layers, rngs=rngs, dtype=dtype)
        self.log_scale = nnx.Param(jnp.zeros((), dtype))

    @property
    def dtype(self) -> Any:
        """The dtype of computations."""
        return self.image.dtype

    def __call__(self, images: jax.Array, tokens: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Scores how well every image matches every text.

        Args:
            images: `(images, height, width, 3)`, scaled as the model was trained.
            tokens: Integers, `(texts, length)`.
            mask: Boolean, `(texts, length)`: which tokens are not padding.

        Returns:
            Logits, `(images, texts)`.
        """
        image, text = (v / jnp.linalg.norm(v, axis=-1, keepdims=True) for v in self.vectors(images, tokens, mask))
        return sow(jnp.exp(self.log_scale[...]) * image @ text.T, "logits")

    def vectors(self, images: jax.Array, tokens: jax.Array, mask: jax.Array | None = None) -> tuple[Any, Any]:
        """The vectors of images and of texts, not normalized."""
        return self.image(images), self.text(tokens, mask=mask)
