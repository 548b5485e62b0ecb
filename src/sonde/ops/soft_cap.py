"""Soft caps: numbers kept between two limits by a hyperbolic tangent."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """Squeezes numbers into the range from `-cap` to `cap`; small ones stay nearly as they are.

    Args:
        x: Any array.
        cap: The limit; None changes nothing.

    Example:
        >>> import jax.numpy as jnp
        >>> soft_cap(jnp.array([0.0, 1000.0]), 30.0)
        Array([ 0., 30.], dtype=float32)
    """
    return x if cap is None else cap * jnp.tanh(x / cap)
