"""Attention with fewer key heads than heads, against JAX's own and against arithmetic written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import nnx, ops

B, T, F, HEADS, KEYS, DEPTH = 2, 3, 6, 4, 2, 2


@pytest.fixture(scope="module")
def x():
    return jnp.asarray(np.random.default_rng(0).normal(size=(B, T, F)), jnp.float32)


def layer_of(**options):
    options = {"heads": HEADS, "key_heads": KEYS, "depth": DEPTH, **options}
    return nnx.GroupedAttention(F, rngs=nnx.Rngs(0), **options)


def projected(layer, x):
    shapes = ((HEADS, layer.q), (KEYS, layer.k), (KEYS, layer.v))
    return [(x @ linear.kernel[...]).reshape(B, T, n, DEPTH) for n, linear in shapes]


CAUSAL = jnp.tril(jnp.ones((T, T), bool))[None]


@pytest.mark.parametrize("mask", [None, CAUSAL], ids=["all", "causal"])
def test_it_is_the_attention_of_jax(x, mask):
    layer = layer_of()
    q, k, v = projected(layer, x)
    heads = jax.nn.dot_product_attention(q, k, v, mask=None if mask is None else mask[:, None])
    expected = heads.reshape(B, T, -1) @ layer.o.kernel[...]
    np.testing.assert_allclose(layer(x, mask=mask), expected, rtol=2e-4, atol=1e-5)


def test_scale_and_cap_by_hand(x):
    layer = layer_of(scale=0.3, cap=0.5)
    q, k, v = projected(layer, x)
    k, v = (jnp.repeat(a, HEADS // KEYS, axis=2) for a in (k, v))  # a key head serves heads that stand together
    scores = 0.5 * jnp.tanh(jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3 / 0.5)
    heads = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
    np.testing.assert_allclose(layer(x), heads.reshape(B, T, -1) @ layer.o.kernel[...], rtol=2e-4, atol=1e-5)


def test_what_each_head_adds_is_a_site_and_sums_to_the_output(x):
    layer, other = layer_of(per_head=True, use_out_bias=True), layer_of(use_out_bias=True)
    other.o.bias[...] = layer.o.bias[...] = jnp.arange(F, dtype=jnp.float32)
    out, records = sonde.capture(layer, "results")(x)
    np.testing.assert_allclose(out, other(x), rtol=2e-4, atol=1e-5)
    results = records["results"].value
    assert results.shape == (B, T, HEADS, F)
    np.testing.assert_allclose(results.sum(2) + jnp.arange(F), out, rtol=2e-4, atol=1e-5)


def test_sites(x):
    rotation = ops.rotary_tables(jnp.arange(T)[None], ops.Rotary(DEPTH))
    records = sonde.capture(layer_of())(x, rotation=rotation)[1]
    names = ("q", "k", "v", "q_rotated", "k_rotated", "scores", "weights", "heads", "out")
    assert {path for path in records if "/" not in path} == set(names)
    np.testing.assert_allclose(records["weights"].value.sum(-1), 1, rtol=1e-5)


def test_a_cache_gives_in_two_steps_what_all_at_once_gives(x):
    layer, kept = layer_of(), []

    def cache(new):
        kept.append(new)
        return nnx.KeyValues(*(jnp.concatenate(parts, axis=1) for parts in zip(*kept)))

    whole = layer(x, mask=CAUSAL)
    steps = [layer(x[:, :-1], mask=CAUSAL[:, :-1, :-1], cache=cache), layer(x[:, -1:], cache=cache)]
    np.testing.assert_allclose(jnp.concatenate(steps, axis=1), whole, rtol=2e-4, atol=1e-5)


def test_defaults():
    layer = nnx.GroupedAttention(8, heads=4, rngs=nnx.Rngs(0))
    assert (layer.key_heads, layer.depth, layer.o.bias) == (4, 2, None)
    assert layer_of(use_bias=True).o.bias is not None
    assert layer_of(use_bias=True, use_out_bias=False).o.bias is None


def test_a_norm_of_queries_and_keys_makes_their_size_irrelevant(x):
    for norm, matters in ((None, True), (nnx.RMSNorm, False)):
        layer = layer_of(norm=norm)
        before = layer(x)
        layer.q.kernel[...] *= 50
        layer.k.kernel[...] *= 50
        assert np.allclose(layer(x), before, rtol=1e-3, atol=1e-4) != matters
