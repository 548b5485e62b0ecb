"""Texts as vectors, by a sentence encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp

from sonde import nnx
from sonde._renames import accepts_old_keywords
from sonde.models.encoder import Encoder

Pooling = Literal["mean", "first"]


@accepts_old_keywords("sonde.models.sentence_vectors")
def sentence_vectors(
    model: Encoder,
    texts: Sequence[str],
    *,
    pooling: Pooling | None = None,
    normalize: bool = True,
    longest: int | None = None,
) -> jax.Array:
    """The vectors of texts: texts of similar meaning have similar vectors.

    Args:
        model: An encoder with a tokenizer.
        texts: The texts.
        pooling: `"mean"` averages the vectors of all tokens, `"first"` takes that of the first one;
            None takes the checkpoint's choice, or `"mean"` if it has none.
        normalize: Whether to scale vectors to length one, so that their products are cosines.
        longest: The maximum number of tokens read per text; the model's number of positions if None.

    Returns:
        `(texts, width)`.

    Raises:
        ValueError: The model has no tokenizer.
    """
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer.")
    most = model.config.positions - model.config.position_offset
    batch = model.tokenizer.batch(texts, longest=min(longest or most, most))
    hidden = _hidden(model, jnp.asarray(batch.tokens), jnp.asarray(batch.mask))
    vectors = pooled(hidden, jnp.asarray(batch.mask), pooling or model.config.pooling or "mean")
    return vectors / jnp.linalg.norm(vectors, axis=-1, keepdims=True) if normalize else vectors


def pooled(hidden: jax.Array, mask: jax.Array, pooling: Pooling = "mean") -> jax.Array:
    """One vector for every text.

    Args:
        hidden: `(texts, length, width)`.
        mask: Boolean, `(texts, length)`: which tokens are not padding.
        pooling: `"mean"` or `"first"`.

    Example:
        >>> import jax.numpy as jnp
        >>> pooled(jnp.array([[[1.0], [3.0], [9.0]]]), jnp.array([[True, True, False]]))
        Array([[2.]], dtype=float32)
    """
    if pooling == "first":
        return hidden[:, 0]
    counts = mask.sum(1, keepdims=True)
    return jnp.where(mask[..., None], hidden, 0).sum(1) / jnp.maximum(counts, 1)


@nnx.jit
def _hidden(model: Encoder, tokens: jax.Array, mask: jax.Array) -> jax.Array:
    return model.hidden(tokens, mask=mask)
