"""Choosing the next token from logits."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Sampling(NamedTuple):
    """How the next token is chosen. Numbers may change without recompiling; None may not.

    Attributes:
        temperature: What logits are divided by; None takes the largest logit.
        top_k: How many of the likeliest tokens are considered; all if None.
        top_p: The likeliest tokens are considered until their probabilities add up to this; all if None.
    """

    temperature: jax.Array | None = None
    top_k: jax.Array | None = None
    top_p: jax.Array | None = None

    @classmethod
    def of(cls, temperature: float, top_k: int | None, top_p: float | None) -> Sampling:
        """Checks the user's options.

        Raises:
            ValueError: A number is out of range.
        """
        if temperature < 0:
            raise ValueError(f"temperature must be at least 0, got {temperature}.")
        if top_k is not None and top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}.")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}.")
        if temperature == 0:
            return cls()
        return cls(
            jnp.float32(temperature),
            None if top_k is None else jnp.int32(top_k),
            None if top_p in (None, 1) else jnp.float32(top_p),
        )


def considered(logits: jax.Array, sampling: Sampling) -> jax.Array:
    """Logits at the temperature, with minus infinity for tokens that are not considered.

    Args:
        logits: `(..., vocabulary)`.
        sampling: How the next token is chosen; with a temperature.

    Example:
        >>> import jax.numpy as jnp
        >>> considered(jnp.array([0.0, 2.0, 1.0]), Sampling.of(1.0, 2, None))
        Array([-inf,   2.,   1.], dtype=float32)
    """
    assert sampling.temperature is not None
    logits = logits / sampling.temperature
    if sampling.top_k is None and sampling.top_p is None:
        return logits
    ordered = jnp.sort(logits, axis=-1, descending=True)
    if sampling.top_k is not None:
        last = jnp.minimum(sampling.top_k, logits.shape[-1]) - 1
        lowest = jnp.take(ordered, last, axis=-1)[..., None]
        logits, ordered = (jnp.where(x < lowest, -jnp.inf, x) for x in (logits, ordered))
    if sampling.top_p is not None:
        # A token is considered if the probabilities before it add up to less than top_p: the first always is.
        shares = jax.nn.softmax(ordered, axis=-1)
        before = jnp.cumsum(shares, axis=-1) - shares
        lowest = jnp.min(jnp.where(before < sampling.top_p, ordered, jnp.inf), axis=-1, keepdims=True)
        logits = jnp.where(logits < lowest, -jnp.inf, logits)
    return logits


def choose(logits: jax.Array, sampling: Sampling, key: jax.Array | None) -> jax.Array:
    """The next token of every row.

    Args:
        logits: `(batch, vocabulary)`.
        sampling: How it is chosen.
        key: A random key; None if there is no temperature.

    Returns:
        Integers, `(batch,)`.
    """
    if sampling.temperature is None:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    assert key is not None
    return jax.random.categorical(key, considered(logits, sampling)).astype(jnp.int32)
