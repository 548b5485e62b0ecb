"""Attention masks: which query may attend to which key.

A mask has the shape `(batch..., heads or 1, queries, keys)`; keys whose entry is zero or False are ignored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sonde.errors import LayerInputError
from sonde.ops.dtypes import Dtype


def make_attention_mask(
    query_input: jax.Array,
    key_input: jax.Array,
    pairwise_fn: Callable[..., Any] = jnp.multiply,
    extra_batch_dims: int = 0,
    dtype: Dtype = jnp.float32,
) -> jax.Array:
    """Compares every query position with every key position.

    Args:
        query_input: `(batch..., queries)`, such as True where there is a token.
        key_input: `(batch..., keys)`.
        pairwise_fn: Compares two elements.
        extra_batch_dims: How many leading axes of length 1 to add.
        dtype: The dtype of the mask.

    Returns:
        `(batch..., 1, queries, keys)`: one mask for all heads.

    Example:
        >>> import jax.numpy as jnp
        >>> make_attention_mask(jnp.ones(2), jnp.array([1.0, 0.0]))
        Array([[[1., 0.],
                [1., 0.]]], dtype=float32)
    """
    mask = pairwise_fn(jnp.expand_dims(query_input, -1), jnp.expand_dims(key_input, -2))
    mask = jnp.expand_dims(mask, (*range(extra_batch_dims), mask.ndim + extra_batch_dims - 2))
    return jnp.asarray(mask, dtype)


def make_causal_mask(x: jax.Array, extra_batch_dims: int = 0, dtype: Dtype = jnp.float32) -> jax.Array:
    """A mask that lets every position attend to itself and to those before.

    `x` is `(batch..., length)`, and only its shape matters; the mask is `(batch..., 1, length, length)`, after
    `extra_batch_dims` axes of length 1.

    Example:
        >>> import jax.numpy as jnp
        >>> make_causal_mask(jnp.ones(2))
        Array([[[1., 0.],
                [1., 1.]]], dtype=float32)
    """
    place = jax.lax.broadcasted_iota(jnp.int32, x.shape, x.ndim - 1)
    return make_attention_mask(place, place, jnp.greater_equal, extra_batch_dims=extra_batch_dims, dtype=dtype)


def combine_masks(*masks: jax.Array | None, dtype: Dtype = jnp.float32) -> jax.Array | None:
    """A mask of what all masks allow; None is a mask that allows everything.

    Args:
        *masks: Masks with the same number of axes.
        dtype: The dtype of the mask.

    Returns:
        One mask, or None when all were None.

    Raises:
        LayerInputError: The masks have different numbers of axes.

    Example:
        >>> import jax.numpy as jnp
        >>> combine_masks(jnp.array([1, 1, 0]), None, jnp.array([0, 1, 1]))
        Array([0., 1., 0.], dtype=float32)
    """
    present = [m for m in masks if m is not None]
    if not present:
        return None
    if len({m.ndim for m in present}) > 1:
        raise LayerInputError(
            f"masks must have the same number of axes, got {', '.join(str(m.ndim) for m in present)} axes."
        )
    return jnp.asarray(functools.reduce(jnp.logical_and, present), dtype)
