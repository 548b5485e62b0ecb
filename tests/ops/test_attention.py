"""Attention against both Flax faces, and its sites."""

from __future__ import annotations

import itertools

import flax.linen as nn
import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import ops
from sonde.errors import LayerInputError

BATCHES = [(), (2,), (2, 3)]
DTYPES = [jnp.float32, jnp.bfloat16]


def arrays(draw, batch, key_heads=4, dtype=jnp.float32, depth=8):
    q = draw(*batch, 5, 4, depth, dtype=dtype)
    k = draw(*batch, 7, key_heads, depth, dtype=dtype)
    return q, k, draw(*batch, 7, key_heads, depth, dtype=dtype)


def options(draw, batch, which):
    found = {}
    if "bias" in which:
        found["bias"] = draw(*batch, 4, 5, 7)
    if "mask" in which:
        found["mask"] = (draw(*batch, 1, 5, 7) > 0).at[..., 0].set(True)
    return found


@pytest.mark.every(23)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("which", ["", "bias", "mask", "bias mask"])
def test_fused_attention_equals_nnx(draw, close, batch, key_heads, dtype, which):
    q, k, v = arrays(draw, batch, key_heads, dtype)
    more = options(draw, batch, which)
    for is_causal in (False, True):
        theirs = fnnx.dot_product_attention(q, k, v, is_causal=is_causal, **more)
        close(ops.fused_attention(q, k, v, is_causal=is_causal, **more), theirs)


@pytest.mark.every(13)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("broadcast_dropout", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_with_dropout_equals_nnx(draw, close, batch, key_heads, broadcast_dropout, dtype):
    q, k, v = arrays(draw, batch, key_heads, dtype)
    more = options(draw, batch, "mask")
    # Two kinds of causal mask in Flax: with batch axes of its own it takes no mask of lower rank.
    for is_causal in (False, True):
        common = dict(
            dropout_rng=jax.random.key(3),
            dropout_rate=0.3,
            broadcast_dropout=broadcast_dropout,
            is_causal=is_causal,
            **({} if is_causal else more),
        )
        close(ops.dot_product_attention(q, k, v, **common), fnnx.dot_product_attention(q, k, v, **common))


@pytest.mark.every(11)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("which, rate", list(itertools.product(["", "bias", "mask", "bias mask"], [0.0, 0.3])))
def test_attention_equals_linen(draw, close, batch, dtype, force, which, rate):
    q, k, v = arrays(draw, batch, dtype=dtype)
    common = dict(
        dropout_rng=jax.random.key(3),
        dropout_rate=rate,
        force_fp32_for_softmax=force,
        **options(draw, batch, which),
    )
    theirs = nn.dot_product_attention(q, k, v, **common)
    close(ops.dot_product_attention(q, k, v, **common), theirs, rtol=2e-2 if dtype == jnp.bfloat16 else None)


def test_gradients_equal_nnx(draw, close):
    q, k, v = arrays(draw, (2,), 2)
    mask = (draw(2, 1, 5, 7) > 0).at[..., 0].set(True)

    def loss(attention):
        return jax.grad(lambda *a: (attention(*a, mask=mask) ** 2).sum(), (0, 1, 2))(q, k, v)

    close(loss(ops.fused_attention), loss(fnnx.dot_product_attention), rtol=4e-6)


@pytest.mark.every(3)
@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_fused_attention_is_seen_and_nothing_changes(draw, key_heads, dtype, is_causal):
    q, k, v = arrays(draw, (2,), key_heads, dtype)
    bias, mask = draw(2, 4, 5, 7), (draw(2, 1, 5, 7) > 0).at[..., 0].set(True)

    def attention(q, k, v):
        return ops.fused_attention(q, k, v, bias=bias, mask=mask, is_causal=is_causal)

    plain = np.asarray(attention(q, k, v), np.float32)
    y, seen = sonde.capture(attention)(q, k, v)
    limit = 1e-6 if dtype == jnp.float32 else 1e-2
    np.testing.assert_allclose(np.asarray(y, np.float32), plain, rtol=limit, atol=limit)
    assert set(seen) == {"scores", "weights", "heads"}
    weights = seen["weights"].value
    assert weights.shape == (2, 4, 5, 7)
    np.testing.assert_allclose(weights.sum(-1).astype(jnp.float32), 1.0, rtol=1e-2)
    assert jnp.all(weights[~jnp.broadcast_to(mask, weights.shape)] == 0)
    assert jnp.all(jnp.isfinite(seen["scores"].value))
    np.testing.assert_array_equal(seen["heads"].value, y)


def test_a_query_that_may_look_at_nothing_gets_no_nan(draw):
    q, k, v = arrays(draw, (2,))
    mask = jnp.zeros((2, 1, 5, 7), bool)
    y, _ = sonde.capture(ops.fused_attention)(q, k, v, mask=mask)
    np.testing.assert_allclose(y, ops.fused_attention(q, k, v, mask=mask), rtol=1e-6, atol=1e-6)
    assert jnp.all(jnp.isfinite(y))


def test_stepwise_attention_is_seen(draw):
    q, k, v = arrays(draw, (2,), 2)

    def attention(q, k, v):
        return ops.dot_product_attention(q, k, v, dropout_rng=jax.random.key(0), dropout_rate=0.5)

    y, seen = sonde.capture(attention)(q, k, v)
    np.testing.assert_array_equal(y, attention(q, k, v))
    np.testing.assert_allclose(seen["weights"].value.sum(-1), 1.0, rtol=1e-5)
    np.testing.assert_array_equal(seen["heads"].value, y)


def test_an_edit_of_the_weights_changes_the_output(draw):
    q, k, v = arrays(draw, (2,))
    first = lambda w: jnp.zeros_like(w).at[..., 0].set(1.0)
    y = sonde.edit(ops.fused_attention, {"weights": first})(q, k, v)
    np.testing.assert_allclose(y, jnp.broadcast_to(v[:, :1], y.shape), rtol=1e-6)


def test_masks_equal_flax(draw, close):
    a, b = draw(2, 5) > 0, draw(2, 7) > 0
    for extra in (0, 2):
        close(
            ops.make_attention_mask(a, b, extra_batch_dims=extra),
            fnnx.make_attention_mask(a, b, extra_batch_dims=extra),
        )
        close(ops.make_causal_mask(a, extra_batch_dims=extra), fnnx.make_causal_mask(a, extra_batch_dims=extra))
    close(
        ops.make_attention_mask(a, b, jnp.logical_or, dtype=bool),
        fnnx.make_attention_mask(a, b, jnp.logical_or, dtype=bool),
    )
    masks = ops.make_causal_mask(a), None, ops.make_attention_mask(a, a)
    close(ops.combine_masks(*masks), fnnx.combine_masks(*masks))
    assert ops.combine_masks(None, None) is None


def test_decoding_step_by_step_equals_causal_attention(draw):
    q, k, v = draw(2, 6, 4, 8), draw(2, 6, 2, 8), draw(2, 6, 2, 8)
    whole = ops.fused_attention(q, k, v, is_causal=True)
    cached_key, cached_value, index = jnp.zeros((2, 6, 2, 8)), jnp.zeros((2, 6, 2, 8)), jnp.int32(0)
    for t in range(6):
        step = slice(t, t + 1)
        cached_key, cached_value, index, mask = ops.decode_step(
            q[:, step], k[:, step], v[:, step], cached_key=cached_key, cached_value=cached_value, index=index
        )
        y = ops.fused_attention(q[:, step], cached_key, cached_value, mask=mask)
        np.testing.assert_allclose(y, whole[:, step], rtol=1e-5, atol=1e-6)
    assert index == 6


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda d: ops.fused_attention(d(2, 5, 4, 8), d(2, 7, 4, 6), d(2, 7, 4, 6)),
            "`query` and `key` must have the same depth, got float32[2,5,4,8] and float32[2,7,4,6].",
        ),
        (
            lambda d: ops.fused_attention(d(2, 5, 4, 8), d(2, 7, 3, 8), d(2, 7, 3, 8)),
            "the number of query heads must be a multiple of the number of key heads, got 4 and 3.",
        ),
        (
            lambda d: ops.fused_attention(d(2, 5, 4, 8), d(3, 7, 4, 8), d(3, 7, 4, 8)),
            "`key` and `query` must have the same batch axes, got float32[3,7,4,8] and float32[2,5,4,8].",
        ),
        (
            lambda d: ops.fused_attention(d(2, 5, 4, 8), d(2, 7, 4, 8), d(2, 6, 4, 8)),
            "`value` and `key` must have the same length and heads, got float32[2,6,4,8] and float32[2,7,4,8].",
        ),
        (
            lambda d: ops.fused_attention(d(4, 8), d(4, 8), d(4, 8)),
            "`query` must have the axes (batch..., length, heads, depth), as many as the query, got "
            "float32[4,8] "
            "for a query float32[4,8].",
        ),
        (
            lambda d: ops.dot_product_attention(d(2, 5, 4, 8), *[d(2, 7, 4, 8)] * 2, mask=d(3, 1, 5, 7) > 0),
            "`mask` has the wrong shape: expected one that broadcasts to (2, 4, 5, 7) (batch..., heads, "
            "queries, "
            "keys), got bool[3,1,5,7].",
        ),
        (
            lambda d: ops.dot_product_attention(d(2, 5, 4, 8), *[d(2, 7, 4, 8)] * 2, dropout_rate=0.5),
            "dropout_rate=0.5 needs `dropout_rng`, a random key, got None.",
        ),
        (
            lambda d: ops.decode_step(
                *[d(2, 2, 4, 8)] * 3, cached_key=d(2, 6, 4, 8), cached_value=d(2, 6, 4, 8), index=jnp.int32(0)
            ),
            "`inputs_q` has the wrong shape: expected (2, 1, 4, 8) (one position for the cache, projected to "
            "(batch..., 1, heads, depth)), got float32[2,2,4,8].",
        ),
        (
            lambda d: ops.combine_masks(d(2, 3), d(3)),
            "masks must have the same number of axes, got 2, 1 axes.",
        ),
    ],
)
def test_what_does_not_fit_is_said(draw, call, words):
    with pytest.raises(LayerInputError) as caught:
        call(draw)
    assert str(caught.value) == words
