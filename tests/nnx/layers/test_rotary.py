"""`nnx.RoPE` and the attention that uses it, against rotations of complex numbers."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import nnx
from sonde.errors import LayerInputError
from sonde.ops.rotary import Rotary, rotary_tables, rotate


def by_hand(x, positions, theta=10000.0):
    """A pair of features is one complex number, which a position turns."""
    half = x.shape[-1] // 2
    numbers = np.asarray(x[..., :half], np.float64) + 1j * np.asarray(x[..., half:], np.float64)
    angles = np.asarray(positions, np.float64)[..., None] * theta ** (-np.arange(half) / half)
    turned = numbers * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], -1)


X = jax.random.normal(jax.random.key(0), (2, 5, 8))


@pytest.mark.parametrize("rope", [nnx.RoPE(), nnx.RoPE(100.0), nnx.RoPE(embedding_size=8, max_seq_len=7)], ids=str)
def test_turns_by_position(rope):
    np.testing.assert_allclose(rope(X), by_hand(X, np.arange(5), rope.theta), atol=1e-5)
    later = jnp.array([3, 1, 4, 1, 5])
    np.testing.assert_allclose(rope(X, later), by_hand(X, later, rope.theta), atol=1e-5)
    for_each = jnp.stack([later, later[::-1]])
    np.testing.assert_allclose(rope(X, for_each), by_hand(X, for_each, rope.theta), atol=1e-5)


def test_small_floats_are_turned_in_float32():
    assert nnx.RoPE()(X.astype(jnp.bfloat16)).dtype == jnp.float32


def test_tables_are_variables_and_no_parameters():
    rope = nnx.RoPE(embedding_size=8, max_seq_len=7)
    assert {path: v.shape for path, v in nnx.to_flat_state(nnx.state(rope))} == {
        ("cached_cos",): (7, 4),
        ("cached_sin",): (7, 4),
    }
    assert not nnx.state(rope, nnx.Param)


def test_attention_depends_on_distance_alone():
    q, k, v = jax.random.normal(jax.random.key(1), (3, 2, 5, 4, 8))
    attend = functools.partial(nnx.dot_product_attention_with_rope, q, k, v, rope=nnx.RoPE())
    turned = [jnp.asarray(np.moveaxis(by_hand(np.moveaxis(a, 2, 1), np.arange(5)), 1, 2), jnp.float32) for a in (q, k)]
    want = nnx.dot_product_attention(*turned, v)
    np.testing.assert_allclose(attend(), want, atol=1e-5)
    np.testing.assert_allclose(attend(input_positions=jnp.arange(5) + 11), want, atol=1e-4)
    np.testing.assert_allclose(attend(is_causal=True)[:, 0], v[:, 0], atol=1e-6)


def test_in_a_layer():
    attention_fn = functools.partial(nnx.dot_product_attention_with_rope, rope=nnx.RoPE())
    layer = nnx.MultiHeadAttention(2, 8, attention_fn=attention_fn, decode=False, rngs=nnx.Rngs(0))
    plain = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
    np.testing.assert_allclose(layer(X, input_positions=jnp.zeros(5, int)), plain(X), atol=1e-5)
    assert not np.allclose(layer(X), plain(X), atol=1e-3)
    np.testing.assert_allclose(layer(X), layer(X, input_positions=jnp.arange(5)), atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: nnx.RoPE(embedding_size=7, max_seq_len=3), r"RoPE: `embedding_size` must be positive and even, got 7"),
        (lambda: nnx.RoPE(embedding_size=8), "given together"),
        (lambda: nnx.RoPE(embedding_size=8, max_seq_len=0), "`max_seq_len` must be positive"),
        (lambda: nnx.RoPE(embedding_size=8, max_seq_len=4)(X), "4 positions of 8 features.* 5 positions of 8"),
        (lambda: nnx.RoPE(embedding_size=6, max_seq_len=9)(X), "positions of 6 features.* positions of 8"),
        (lambda: nnx.RoPE()(X[..., :7]), "in pairs, but the input has 7"),
    ],
)
def test_what_does_not_fit(wrong, message):
    with pytest.raises(LayerInputError, match=message):
        wrong()


@pytest.mark.parametrize(
    "rotary",
    [
        Rotary(8),
        Rotary(8, kind="dynamic", factor=2.0, trained_length=4),
        Rotary(8, kind="longrope", short_factors=(1.0,) * 4, long_factors=(2.0,) * 4, trained_length=4),
    ],
    ids=lambda rotary: rotary.kind,
)
def test_no_rank_is_promoted(rotary):
    with jax.numpy_rank_promotion("raise"):
        x = jnp.ones((2, 5, 3, 8))
        shared = rotate(x, *rotary_tables(jnp.arange(5), rotary))
        each = rotate(x, *rotary_tables(jnp.tile(jnp.arange(5), (2, 1)), rotary))
        assert jnp.array_equal(shared, each)
        layer = nnx.RoPE()
        attend = functools.partial(nnx.dot_product_attention_with_rope, rope=layer)
        assert nnx.MultiHeadAttention(2, 8, attention_fn=attend, decode=False, rngs=nnx.Rngs(0))(x[:, :, 0]).ndim == 3
