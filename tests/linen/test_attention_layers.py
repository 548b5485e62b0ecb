"""Attention layers against their namesakes in flax.linen."""

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import pytest
from tests.linen.against_flax import KEYS, assert_same, check

from sonde import linen as nn

X = jax.random.normal(jax.random.key(7), (2, 6, 4))
IMAGE = jax.random.normal(jax.random.key(8), (2, 7, 6, 4))
MASK = jnp.arange(6) < 4
NORMAL = jax.nn.initializers.normal()

ATTENTION = {
    "plain": lambda nn: nn.MultiHeadDotProductAttention(2),
    "features": lambda nn: nn.MultiHeadAttention(2, qkv_features=8, out_features=3, use_bias=False),
    "normalized": lambda nn: nn.MultiHeadDotProductAttention(2, normalize_qk=True, out_kernel_init=NORMAL),
    "half": lambda nn: nn.MultiHeadDotProductAttention(2, dtype=jnp.bfloat16, force_fp32_for_softmax=True),
    "dropout": lambda nn: nn.MultiHeadDotProductAttention(2, dropout_rate=0.3, deterministic=False),
    "dropout everywhere": lambda nn: nn.MultiHeadDotProductAttention(
        2, dropout_rate=0.3, broadcast_dropout=False, deterministic=False
    ),
    "self": lambda nn: nn.SelfAttention(2),
}


@pytest.mark.every(2)
@pytest.mark.filterwarnings("ignore:SelfAttention will be deprecated")  # by flax
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    check(ATTENTION[name], X, grads=name == "normalized")


def test_decoding():
    build = lambda nn: nn.MultiHeadDotProductAttention(2, decode=True)
    ours, theirs = build(nn), build(flax_nn)
    mine, other = ours.init(KEYS, X), theirs.init(KEYS, X)
    assert_same(mine, other)
    for i in range(3):
        y, changed = ours.apply(mine, X[:, i : i + 1], mutable=["cache"])
        z, expected = theirs.apply(other, X[:, i : i + 1], mutable=["cache"])
        assert_same((y, changed), (z, expected))
        mine, other = {**mine, **changed}, {**other, **expected}


def test_attention_to_something_else():
    check(ATTENTION["plain"], X, X[:, :5] * 2)
    check(ATTENTION["plain"], X, X[:, :5] * 2, X[:, :5] + 1)
    check(ATTENTION["plain"], X, mask=nn.make_causal_mask(X[..., 0]))


def test_attention_sows_its_weights():
    check(ATTENTION["plain"], X, sow_weights=True)


def test_attention_says_which_heads_do_not_fit():
    with pytest.raises(ValueError, match=r"MultiHeadDotProductAttention at /: qkv_features=4 .* num_heads=3"):
        nn.MultiHeadDotProductAttention(3).init(jax.random.key(0), X)
