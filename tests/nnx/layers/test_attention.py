"""Multi-head attention against Flax, and its sites."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import nnx
from sonde.errors import LayerInputError


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"qkv_features": 16, "out_features": 6},
        {"num_kv_heads": 2, "normalize_qk": True, "qkv_features": 32},
        {"dtype": jnp.bfloat16},
        {"param_dtype": jnp.bfloat16, "use_bias": False},
        {"dropout_rate": 0.4, "deterministic": False},
        {"dropout_rate": 0.4, "deterministic": False, "broadcast_dropout": False, "num_kv_heads": 2},
        {"dropout_rate": 0.4, "deterministic": True},
    ],
    ids=str,
)
def test_self_attention(same, draw, options):
    x = draw(2, 5, 8)
    mask = (draw(2, 1, 5, 5) > 0).at[..., 0].set(True)

    def make(n, rngs):
        init = n.initializers.normal(1.0)
        return n.MultiHeadAttention(4, 8, decode=False, bias_init=init, rngs=rngs, **options)

    same(make, lambda n, m: (m(x), m(x, mask=mask)))


def test_causal_attention(same, draw):
    x = draw(2, 5, 8)
    same(lambda n, rngs: n.MultiHeadAttention(4, 8, decode=False, rngs=rngs), lambda n, m: m(x, is_causal=True))


def test_cross_attention(same, draw):
    q, k, v = draw(2, 5, 8), draw(2, 7, 6), draw(2, 7, 6)

    def make(n, rngs):
        return n.MultiHeadAttention(4, 8, in_kv_features=6, decode=False, rngs=rngs)

    same(make, lambda n, m: (m(q, k), m(q, k, v)))


def test_streams_of_the_call(same, draw):
    x = draw(2, 5, 8)

    def make(n, rngs):
        return n.MultiHeadAttention(4, 8, dropout_rate=0.4, keep_rngs=False, rngs=rngs)

    def call(n, m):
        return m(x, rngs=n.Rngs(dropout=3), deterministic=False, decode=False)

    same(make, call)


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"dropout_rate": 0.4, "deterministic": True}], ids=str)
def test_decoding(same, draw, options):
    x = draw(2, 6, 8)

    def call(n, m):
        m.init_cache((2, 6, 8))
        return [m(x[:, i : i + 1]) for i in range(4)]

    same(lambda n, rngs: n.MultiHeadAttention(4, 8, decode=True, rngs=rngs, **options), call, gradients=False)


def test_decoding_gives_what_causal_attention_gives(draw):
    layer = nnx.MultiHeadAttention(4, 8, decode=False, rngs=nnx.Rngs(0))
    x = draw(2, 6, 8)
    whole = layer(x, is_causal=True)
    decoder = nnx.view(layer, decode=True, batch_size=2, max_length=6)
    for i in range(6):
        np.testing.assert_allclose(decoder(x[:, i : i + 1]), whole[:, i : i + 1], rtol=1e-5, atol=1e-6)
    assert layer.cached_key is None


def test_dot_product_attention_is_flax_s(draw):
    q, k, v = draw(2, 5, 4, 8), draw(2, 7, 4, 8), draw(2, 7, 4, 8)
    bias, mask = draw(2, 1, 5, 7), (draw(2, 4, 5, 7) > 0).at[..., 0].set(True)
    for options in (
        {},
        {"dropout_rate": 0.5, "dropout_rng": jax.random.key(1)},
        {"dropout_rate": 0.5, "deterministic": True},
    ):
        ours = nnx.dot_product_attention(q, k, v, bias, mask, **options)
        theirs = fnnx.dot_product_attention(q, k, v, bias, mask, **options)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    assert nnx.dot_product_attention(q, k, draw(2, 7, 4, 3)).shape == (2, 5, 4, 3)


def test_attention_in_bfloat16_has_the_bits_of_flax(draw):
    q, k, v = (draw(2, 5, 2, 4).astype(jnp.bfloat16) for _ in range(3))
    for options in ({}, {"dropout_rate": 0.3, "deterministic": True}, {"deterministic": True}):
        ours, theirs = (n.dot_product_attention(q, k, v, **options) for n in (nnx, fnnx))
        assert jnp.array_equal(ours, theirs), options


def test_another_attention_function_is_used(draw):
    def first_value(query, key, value, **options):
        assert options["deterministic"] and options["mask"] is None
        return jnp.broadcast_to(value[:, :1], query.shape)

    layer = nnx.MultiHeadAttention(4, 8, attention_fn=first_value, decode=False, rngs=nnx.Rngs(0))
    x = draw(2, 5, 8)
    expected = jnp.broadcast_to(layer.out(layer.value(x[:, :1])), (2, 5, 8))
    np.testing.assert_allclose(layer(x), expected, rtol=1e-6, atol=1e-6)


def test_weights_are_seen_without_touching_the_layer(draw):
    layer = nnx.MultiHeadAttention(4, 8, decode=False, rngs=nnx.Rngs(0))
    x = draw(2, 5, 8)
    y, seen = sonde.capture(lambda x: layer(x, is_causal=True))(x)
    np.testing.assert_allclose(y, layer(x, is_causal=True), rtol=1e-6, atol=1e-6)
    weights = next(record.value for path, record in seen.items() if path.split("/")[-1] == "weights")
    assert weights.shape == (2, 4, 5, 5)
    assert jnp.all(jnp.triu(weights, 1) == 0)
    np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-6)


def test_weights_are_sown_when_asked(draw):
    x = draw(2, 5, 8)
    ours, theirs = (n.MultiHeadAttention(4, 8, decode=False, rngs=n.Rngs(0)) for n in (nnx, fnnx))
    with pytest.warns(DeprecationWarning, match="nnx.capture"):
        ours(x, sow_weights=True)
    with pytest.warns(DeprecationWarning):
        theirs(x, sow_weights=True)
    np.testing.assert_allclose(
        ours.attention_weights.get_value()[0], theirs.attention_weights.get_value()[0], rtol=1e-6
    )


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda d: nnx.MultiHeadAttention(3, 4, rngs=nnx.Rngs(0)),
            "MultiHeadAttention: qkv_features=4 cannot be divided evenly among num_heads=3 heads.",
        ),
        (
            lambda d: nnx.MultiHeadAttention(4, 8, num_kv_heads=3, rngs=nnx.Rngs(0)),
            "MultiHeadAttention: num_heads=4 cannot be divided evenly among num_kv_heads=3 key heads.",
        ),
        (
            lambda d: nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))(d(2, 3, 5)),
            "MultiHeadAttention: `inputs_q` has the wrong number of features: expected 4 along axis -1, got 5 in "
            "float32[2,3,5].",
        ),
        (
            lambda d: nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))(d(2, 3, 4), mask=d(3, 1, 3, 3)),
            "MultiHeadAttention: `mask` has the wrong shape: expected one that broadcasts to (2, 2, 3, 3) (batch..., "
            "heads, queries, keys), got float32[3,1,3,3].",
        ),
        (
            lambda d: nnx.MultiHeadAttention(2, 4, decode=True, rngs=nnx.Rngs(0))(d(2, 1, 4)),
            "MultiHeadAttention: decode=True needs a cache, but this layer has none: call `init_cache` first.",
        ),
        (
            lambda d: nnx.MultiHeadAttention(2, 4, decode=False, rngs=nnx.Rngs(0))(d(2, 3, 4), None, d(2, 3, 4)),
            "MultiHeadAttention: `inputs_v` is given but `inputs_k` is not. Give `inputs_k`; alone it serves as both "
            "keys and values.",
        ),
        (
            lambda d: nnx.MultiHeadAttention(
                2, 4, decode=False, dropout_rate=0.5, deterministic=False, keep_rngs=False, rngs=nnx.Rngs(0)
            )(d(2, 3, 4)),
            "MultiHeadAttention: dropping with dropout_rate=0.5 draws random numbers, but a layer made with "
            "keep_rngs=False has no stream to draw from: pass `rngs` or deterministic=True to the call.",
        ),
    ],
)
def test_what_does_not_fit_is_said(draw, call, words):
    with pytest.raises(LayerInputError) as caught:
        call(draw)
    assert str(caught.value) == words


def test_an_unsaid_setting_is_said(draw):
    with pytest.raises(ValueError, match="MultiHeadAttention: `decode` is not set"):
        nnx.MultiHeadAttention(2, 4, rngs=nnx.Rngs(0))(draw(2, 3, 4))
    layer = nnx.MultiHeadAttention(2, 4, decode=False, dropout_rate=0.5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="MultiHeadAttention: `deterministic` is not set"):
        layer(draw(2, 3, 4))
