"""Scaled dot-product attention: scores, weights, mixed values; and one step of decoding with a cache.

Queries are `(batch..., queries, heads, depth)`, keys and values `(batch..., keys, key heads, depth)`. With
fewer key heads than heads, every key head serves a group of consecutive heads (grouped-query attention).

Sites: `scores` (scaled products plus bias, before the mask), `weights` (after softmax, before dropout),
`heads` (the mix of values, one vector per head).

There are two numerical recipes, because Flax has two:

- `dot_product_attention` works step by step in the inputs' dtype: the query is divided by √depth, softmax
  runs in the inputs' dtype unless `force_fp32_for_softmax`. Needed for dropout, and the only way in `flax.linen`.
- `fused_attention` is `jax.nn.dot_product_attention`: scores and softmax in float32, scaled after the product. During a
  capture, the same recipe runs step by step, because a site cannot be put inside JAX's function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import PrecisionLike

from sonde._array_text import describe
from sonde.core import sow, sows_are_seen
from sonde.errors import LayerInputError
from sonde.ops.checks import expect_broadcastable, expect_shape
from sonde.ops.dense import given
from sonde.ops.dropout import keep_mask
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_all, promote_dtype, widest
from sonde.ops.masks import combine_masks
from sonde.ops.sharding import sharded_as

Einsum = Callable[..., jax.Array]


def dot_product_attention_weights(
    query: jax.Array,
    key: jax.Array,
    *,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    is_causal: bool = False,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    force_fp32_for_softmax: bool = False,
    einsum: Einsum = jnp.einsum,
    promote_dtype: PromoteDtype | None = promote_dtype,
    report: Callable[[jax.Array], Any] | None = None,
) -> jax.Array:
    """The attention weights of every query and key, step by step in the inputs' dtype.

    The result is `(batch..., heads, queries, keys)`; bias and mask are broadcast to that, and positions whose mask is
    False get no weight. The options are those of `nnx.dot_product_attention`. With `force_fp32_for_softmax` the weights
    stay float32. `report` is called with the weights before dropout.

    Raises:
        LayerInputError: Shapes do not fit, or dropout has no random key.
    """
    # Before the cast, so that messages show the shapes and dtypes that the user gave.
    groups = _check(query, key, None, bias=bias, mask=mask)
    query, key = promote_all(promote_dtype, (query, key), dtype)
    dtype = query.dtype
    # Scaled before the product and in the inputs' dtype, as in Flax: the last digits depend on it.
    query = query / jnp.sqrt(jnp.asarray(query.shape[-1], float)).astype(dtype)
    if groups == 1:
        scores = einsum("...qhd,...khd->...hqk", query, key, **given(precision=precision))
    else:
        query = _split_heads(query, groups, axis=-2)
        scores = _merge_heads(einsum("...qhgd,...khd->...hgqk", query, key, **given(precision=precision)), axis=-4)
    if bias is not None:
        scores = _like(scores, bias) + _rank_like(bias, scores)
    scores = sow(scores, "scores")
    mask = _with_causal(mask, is_causal, scores.shape)
    if mask is not None:
        # The least finite number, not minus infinity: a query without visible keys gets equal weights instead of NaN.
        scores = jnp.where(_rank_like(mask, scores).astype(bool), scores, jnp.finfo(scores.dtype).min)
    if force_fp32_for_softmax and dtype != jnp.float32:
        weights = jax.nn.softmax(scores.astype(jnp.float32))
    else:
        weights = jax.nn.softmax(scores).astype(dtype)
    weights = sow(weights, "weights")
    if report is not None:
        report(weights)
    if deterministic or dropout_rate == 0.0:
        return weights
    check_dropout_rate(dropout_rate)
    if dropout_rng is None:
        raise LayerInputError(f"dropout_rate={dropout_rate} needs `dropout_rng`, a random key, got None.")
    shape = weights.shape
    if broadcast_dropout:
        shape = (1,) * (len(shape) - 2) + shape[-2:]
    keep = keep_mask(dropout_rng, dropout_rate, shape)
    return weights * (keep.astype(weights.dtype) / jnp.asarray(1.0 - dropout_rate, weights.dtype))


def mix_values(
    weights: jax.Array, value: jax.Array, *, precision: PrecisionLike = None, einsum: Einsum = jnp.einsum
) -> jax.Array:
    """The weighted mean of the values, for every head.

    `weights` are `(batch..., heads, queries, keys)`; the result is `(batch..., queries, heads, depth)`.
    """
    groups = weights.shape[-3] // value.shape[-2]
    if groups == 1:
        heads = einsum("...hqk,...khd->...qhd", weights, value, **given(precision=precision))
    else:
        weights = _split_heads(weights, groups, axis=-3)
        heads = _merge_heads(einsum("...hgqk,...khd->...qhgd", weights, value, **given(precision=precision)), axis=-3)
    return sow(heads, "heads")


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    promote_dtype: PromoteDtype | None = promote_dtype,
    qk_einsum: Einsum = jnp.einsum,
    value_einsum: Einsum = jnp.einsum,
    **options: Any,
) -> jax.Array:
    """Attention step by step, in the inputs' dtype.

    The result is `(batch..., queries, heads, value depth)`. `qk_einsum` and `value_einsum` are the two products;
    `options` are bias, mask, dropout and the rest, as in `dot_product_attention_weights`.

    Raises:
        LayerInputError: Shapes do not fit, or dropout has no random key.

    Example:
        >>> import jax.numpy as jnp
        >>> q = jnp.ones((2, 5, 4, 8))
        >>> dot_product_attention(q, q, q, is_causal=True).shape
        (2, 5, 4, 8)
    """
    _check(query, key, value, bias=None, mask=None)
    query, key, value = promote_all(promote_dtype, (query, key, value), dtype)
    weights = dot_product_attention_weights(
        query,
        key,
        dtype=query.dtype,
        precision=precision,
        einsum=qk_einsum,
        promote_dtype=promote_dtype,
        **options,
    )
    return mix_values(weights, value, precision=precision, einsum=value_einsum)


def fused_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    is_causal: bool = False,
    dtype: Dtype | None = None,
    promote_dtype: PromoteDtype | None = promote_dtype,
) -> jax.Array:
    """Attention without dropout by `jax.nn.dot_product_attention`; scores and softmax in float32.

    The result is `(batch..., queries, heads, depth)`; the options are those of `nnx.dot_product_attention`.

    Raises:
        LayerInputError: Shapes do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> q, kv = jnp.ones((5, 4, 8)), jnp.ones((7, 2, 8))
        >>> fused_attention(q, kv, kv).shape
        (5, 4, 8)
    """
    _check(query, key, value, bias=bias, mask=mask)
    query, key, value = promote_all(promote_dtype, (query, key, value), dtype)
    if sows_are_seen():
        return _fused_attention_in_sight(query, key, value, bias=bias, mask=mask, is_causal=is_causal)
    batch = query.shape[:-3]

    def four_axes(x: jax.Array) -> jax.Array:
        return jnp.reshape(x, (math.prod(batch), *x.shape[-3:]))

    def pair(x: jax.Array | None) -> jax.Array | None:
        if x is None:
            return None
        x = jnp.reshape(x, (1,) * (query.ndim - x.ndim) + x.shape)
        # Batch axes are merged, so what varies over one of them must be there for all.
        if all(n == 1 for n in x.shape[:-3]):
            return jnp.reshape(x, (1, *x.shape[-3:]))
        return four_axes(jnp.broadcast_to(x, (*batch, *x.shape[-3:])))

    mask = pair(mask)
    y = jax.nn.dot_product_attention(
        four_axes(query),
        four_axes(key),
        four_axes(value),
        bias=pair(bias),
        mask=None if mask is None else mask.astype(bool),
        is_causal=is_causal,
    )
    return jnp.reshape(y, (*batch, *y.shape[1:]))


def _fused_attention_in_sight(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    bias: jax.Array | None,
    mask: jax.Array | None,
    is_causal: bool,
) -> jax.Array:
    """The recipe of `jax.nn.dot_product_attention` with sites."""
    wide = widest(query, jnp.float32)
    query = _split_heads(query, query.shape[-2] // key.shape[-2], axis=-2)
    scores = jnp.einsum("...qhgd,...khd->...hgqk", query, key, preferred_element_type=wide)
    scores = _merge_heads(scores, axis=-4) * jnp.asarray(1.0 / math.sqrt(query.shape[-1]), wide)
    if bias is not None:
        scores = scores + _rank_like(bias, scores).astype(wide)
    scores = sow(scores, "scores")
    mask = _with_causal(mask, is_causal, scores.shape)
    if mask is not None:
        # Not minus infinity, so that a query without visible keys gets equal weights instead of NaN.
        lowest = jnp.asarray(-0.7 * jnp.finfo(wide).max, wide)
        scores = jnp.where(_rank_like(mask, scores).astype(bool), scores, lowest)
    weights = sow(jax.nn.softmax(scores).astype(key.dtype), "weights")
    return mix_values(weights, value)


def decode_step(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    cached_key: jax.Array,
    cached_value: jax.Array,
    index: jax.Array,
    mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
    """Writes one position into a cache, and masks all positions that are not written yet.

    Args:
        query: `(batch..., 1, heads, depth)`.
        key: `(batch..., 1, key heads, depth)`.
        value: Like `key`.
        cached_key: `(batch..., length, key heads, depth)`.
        cached_value: Like `cached_key`.
        index: How many positions have been written, a scalar.
        mask: A further mask for the attention that follows.

    Returns:
        The new cached keys, cached values, index, and the mask for the attention that follows.

    Raises:
        LayerInputError: The inputs are not exactly one position, or do not fit the cache.
    """
    *batch, length, heads, depth = cached_key.shape
    expect_shape(
        query,
        (*batch, 1, query.shape[-2], depth),
        argument="inputs_q",
        meaning="one position for the cache, projected to (batch..., 1, heads, depth)",
    )
    for name, x in (("inputs_k", key), ("inputs_v", value)):
        expect_shape(
            x,
            (*batch, 1, heads, depth),
            argument=name,
            meaning="one position for the cache, projected to (batch..., 1, key heads, depth)",
        )
    start = jnp.zeros((), index.dtype)  # JAX demands one dtype for all indices
    starts = (*(start for _ in batch), index, start, start)
    cached_key = lax.dynamic_update_slice(cached_key, sharded_as(key.astype(cached_key.dtype), cached_key), starts)
    new_value = sharded_as(value.astype(cached_value.dtype), cached_value)
    cached_value = lax.dynamic_update_slice(cached_value, new_value, starts)
    # Up to and including the position that is written now.
    written = jnp.broadcast_to(jnp.arange(length) <= index, (*batch, 1, 1, length))
    return cached_key, cached_value, index + 1, combine_masks(mask, written, dtype=bool)


def check_dropout_rate(dropout_rate: float) -> None:
    """Raises if a rate of dropout leaves nothing to divide by.

    Raises:
        LayerInputError: The rate is not from 0 to 1, or is 1.
    """
    if not 0.0 <= dropout_rate < 1.0:
        raise LayerInputError(f"`dropout_rate` must be in the range [0, 1), got {dropout_rate!r}.")


def _check(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array | None,
    *,
    bias: jax.Array | None,
    mask: jax.Array | None,
) -> int:
    """Checks the shapes; returns how many heads share a key head."""
    arrays = {"query": query, "key": key} | ({} if value is None else {"value": value})
    for name, x in arrays.items():
        if x.ndim < 3 or x.ndim != query.ndim:
            raise LayerInputError(
                f"`{name}` must have the axes (batch..., length, heads, depth), as many as the query, "
                f"got {describe(x)} for a query {describe(query)}."
            )
        if x.shape[:-3] != query.shape[:-3]:
            raise LayerInputError(
                f"`{name}` and `query` must have the same batch axes, got {describe(x)} and {describe(query)}."
            )
    if query.shape[-1] != key.shape[-1]:
        raise LayerInputError(f"`query` and `key` must have the same depth, got {describe(query)} and {describe(key)}.")
    if value is not None and value.shape[-3:-1] != key.shape[-3:-1]:
        raise LayerInputError(
            f"`value` and `key` must have the same length and heads, got {describe(value)} and {describe(key)}."
        )
    if query.shape[-2] % key.shape[-2]:
        raise LayerInputError(
            f"the number of query heads must be a multiple of the number of key heads, "
            f"got {query.shape[-2]} and {key.shape[-2]}."
        )
    scores = (*query.shape[:-3], query.shape[-2], query.shape[-3], key.shape[-3])
    for name, x in (("bias", bias), ("mask", mask)):
        if x is not None:
            expect_broadcastable(x, scores, argument=name, meaning="batch..., heads, queries, keys")
    return query.shape[-2] // key.shape[-2]


def _split_heads(x: jax.Array, groups: int, *, axis: int) -> jax.Array:
    axis %= x.ndim
    return jnp.reshape(x, (*x.shape[:axis], x.shape[axis] // groups, groups, *x.shape[axis + 1 :]))


def _merge_heads(x: jax.Array, *, axis: int) -> jax.Array:
    axis %= x.ndim
    return jnp.reshape(x, (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]))


def _rank_like(x: jax.Array, other: jax.Array) -> jax.Array:
    return jnp.reshape(x, (1,) * (other.ndim - x.ndim) + x.shape)


def _like(x: jax.Array, other: jax.Array) -> jax.Array:
    return x.astype(widest(x, other))


def _with_causal(mask: jax.Array | None, is_causal: bool, shape: tuple[int, ...]) -> jax.Array | None:
    if not is_causal:
        return mask
    earlier = jnp.tri(shape[-2], shape[-1], dtype=bool)
    return earlier if mask is None else jnp.logical_and(mask.astype(bool), earlier)
