"""Attention as in current language models: grouped keys, a custom scale, a soft cap, windows.

Queries are `(batch, queries, heads, depth)`, keys and values `(batch, keys, key heads, depth)`. Scores and softmax are
computed in float32, whatever the dtype of the arrays.

Sites: `scores` (scaled and capped, before the mask), `weights` (after softmax), `heads` (one vector per head).

With `implementation`, `jax.nn.dot_product_attention` computes the heads, and no scores exist. While a capture runs,
scores and weights are computed in addition, for their sites; a compiled program drops them unless the capture wants
them. If a capture may change them or wants their gradients, the heads are computed from them instead.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from sonde._array_text import describe
from sonde.core import capture_state, sow, sows_are_seen
from sonde.errors import LayerInputError
from sonde.ops.activations import soft_cap

Implementation = Literal["xla", "cudnn"]


def grouped_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
    scale: float | None = None,
    cap: float | None = None,
    implementation: Implementation | None = None,
) -> jax.Array:
    """Attention in which a key head serves a group of consecutive heads.

    Args:
        query: `(batch, queries, heads, depth)`.
        key: `(batch, keys, key heads, depth)`.
        value: Like `key`.
        mask: Boolean, broadcast to `(batch, queries, keys)`; positions that are False get no weight. A query without
            visible keys gets equal weights.
        scale: What scores are multiplied by; 1/√depth if None.
        cap: Soft cap of the scores.
        implementation: Uses that implementation of `jax.nn.dot_product_attention`, unless there is a cap.

    Returns:
        `(batch, queries, heads, depth)`.

    Raises:
        LayerInputError: Shapes do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> q, kv = jnp.ones((2, 5, 4, 8)), jnp.ones((2, 7, 2, 8))
        >>> grouped_attention(q, kv, kv).shape
        (2, 5, 4, 8)
    """
    _check(query, key, value)
    scale = float(query.shape[-1] ** -0.5) if scale is None else scale
    state = capture_state() if sows_are_seen() else None
    if implementation is None or cap is not None or (state is not None and (state.edits or state.grads)):
        return sow(_heads(_weights(query, key, mask, scale, cap), value), "heads")
    if state is not None:  # only for the sites inside: the result of this call is not used
        _weights(query, key, mask, scale, cap)
    mask = None if mask is None else jnp.broadcast_to(mask, _mask_shape(query, key))[:, None]
    heads = jax.nn.dot_product_attention(query, key, value, mask=mask, scale=scale, implementation=implementation)
    return sow(heads, "heads")


def visible(
    query_positions: jax.Array,
    key_positions: jax.Array,
    *,
    causal: bool = True,
    window: int | jax.Array | None = None,
    valid: jax.Array | None = None,
) -> jax.Array | None:
    """Which keys each query may attend to.

    Args:
        query_positions: `(batch or 1, queries)`.
        key_positions: `(batch or 1, keys)`.
        causal: Whether keys after the query are hidden.
        window: How many positions a query sees, including its own; all if None.
        valid: `(batch or 1, keys)`: keys that are not padding.

    Returns:
        Boolean, `(batch or 1, queries, keys)`; None if everything is visible.

    Example:
        >>> import jax.numpy as jnp
        >>> at = jnp.arange(4)[None]
        >>> visible(at, at, window=2)[0].astype(int)
        Array([[1, 0, 0, 0],
               [1, 1, 0, 0],
               [0, 1, 1, 0],
               [0, 0, 1, 1]], dtype=int32)
    """
    back = query_positions[:, :, None] - key_positions[:, None, :]
    parts = [] if valid is None else [valid[:, None, :]]
    if causal:
        parts.append(back >= 0)
    if window is not None:
        parts.append(back < window)
        if not causal:  # then the window has as many positions on the other side
            parts.append(back > -window)
    mask = None
    for part in parts:
        mask = part if mask is None else mask & part
    return mask


def head_results(heads: jax.Array, kernel: jax.Array) -> jax.Array:
    """What each head adds to the residual stream.

    Args:
        heads: `(batch..., heads, depth)`.
        kernel: The kernel of the output projection, `(heads * depth, features)`.

    Returns:
        `(batch..., heads, features)`.

    Example:
        >>> import jax.numpy as jnp
        >>> head_results(jnp.ones((5, 2, 3)), jnp.ones((6, 4))).shape
        (5, 2, 4)
    """
    kernel = kernel.reshape(heads.shape[-2], heads.shape[-1], -1)
    return jnp.einsum("...hd,hdf->...hf", heads, kernel)


def _weights(query: jax.Array, key: jax.Array, mask: jax.Array | None, scale: float, cap: float | None) -> jax.Array:
    """The weights, `(batch, key heads, group, queries, keys)`.

    Key heads and groups are separate axes: with one axis, the product would have to be transposed in memory. For sites
    they are merged into one axis, which the compiler undoes if no site is captured.
    """
    batch, queries, heads, depth = query.shape
    key_heads, keys = key.shape[2], key.shape[1]
    apart = (batch, key_heads, heads // key_heads, queries, keys)
    grouped = query.reshape(batch, queries, key_heads, heads // key_heads, depth)
    scores = jnp.einsum("bqkgd,bskd->bkgqs", grouped, key, preferred_element_type=jnp.float32)
    scores = _seen(soft_cap(scores * scale, cap), "scores", apart)
    if mask is not None:
        # Not minus infinity, so that a query without visible keys gets equal weights instead of NaN.
        scores = jnp.where(mask[:, None, None], scores, -0.7 * float(jnp.finfo(jnp.float32).max))
    return _seen(jax.nn.softmax(scores, axis=-1).astype(query.dtype), "weights", apart)


def _seen(x: jax.Array, name: str, apart: tuple[int, ...]) -> jax.Array:
    """A site whose value has one axis for all heads."""
    if not sows_are_seen():
        return x
    batch, key_heads, group, queries, keys = apart
    return sow(x.reshape(batch, key_heads * group, queries, keys), name).reshape(apart)


def _heads(weights: jax.Array, value: jax.Array) -> jax.Array:
    batch, key_heads, group, queries, _ = weights.shape
    mixed = jnp.einsum("bkgqs,bskd->bqkgd", weights, value)
    return mixed.reshape(batch, queries, key_heads * group, value.shape[-1])


def _mask_shape(query: jax.Array, key: jax.Array) -> tuple[int, int, int]:
    return query.shape[0], query.shape[1], key.shape[1]


def _check(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != 4:
            raise LayerInputError(f"`{name}` must have the axes (batch, length, heads, depth), got {describe(x)}.")
    if key.shape[:3] != value.shape[:3] or key.shape[0] != query.shape[0] or key.shape[3] != query.shape[3]:
        raise LayerInputError(
            f"queries {describe(query)}, keys {describe(key)} and values {describe(value)} do not fit together."
        )
    if query.shape[2] % key.shape[2]:
        raise LayerInputError(
            f"the number of heads must be a multiple of the number of key heads, got {query.shape[2]} and "
            f"{key.shape[2]}."
        )
