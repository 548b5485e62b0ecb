"""Whole packages marked at once: training steps compute the same, and planted overflows are found."""

from __future__ import annotations

import functools

import equinox
import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.inside.models import LIBRARIES

import sonde

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]


@functools.cache
def everything():
    return sonde.Inside(jax.nn, optax, equinox.nn, flax.linen, flax.nnx)


MODELS = [
    ("equinox", "transformer"),
    ("equinox", "recurrent"),
    ("flax_linen", "transformer"),
    ("flax_nnx", "convolutional"),
    ("flax_nnx", "transformer"),
]


@pytest.mark.parametrize(("library", "kind"), MODELS)
def test_training_steps_are_bit_for_bit_the_same(library, kind):
    """Sites that no pattern chooses leave nothing in the compiled program."""
    _, params, apply, x = LIBRARIES[library](kind)
    optimizer = optax.adamw(1e-2)

    def step(params, state):
        loss, grads = jax.value_and_grad(lambda p: (apply(p, x) ** 2).mean())(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    plain = marked = (params, optimizer.init(params))
    run = jax.jit(step)
    seen = jax.jit(lambda *a: sonde.capture(step, "**/count_inc", inside=everything())(*a)[0])
    for _ in range(3):
        plain, marked = run(*plain)[:2], seen(*marked)[:2]
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(marked), strict=True):
        np.testing.assert_array_equal(a, b)


EQUINOX = equinox.nn.MultiheadAttention(1, 4, key=jax.random.key(0))
SCALES = {"scale": jnp.ones(3), "bias": jnp.zeros(3)}

# Functions of other libraries, arguments that overflow in a known variable, and that variable.
HUGE = jnp.float32(3e38)
X = jnp.array([1.0, 2.0, 3.0])
Q = jax.random.normal(jax.random.key(0), (1, 3, 2, 4))  # batch, time, heads, features
PLANTED = [
    ("linen_attention", lambda s: flax.linen.dot_product_attention(Q * s, Q * s, Q), "dot_product_attention_weights"),
    ("jax_attention", lambda s: jax.nn.dot_product_attention(Q * s, Q * s, Q), "dot_product_attention"),
    ("nnx_attention", lambda s: flax.nnx.dot_product_attention(Q * s, Q * s, Q), "dot_product_attention"),
    ("equinox_attention", lambda s: EQUINOX(Q[0, :, 0] * s, Q[0, :, 0] * s, Q[0, :, 0]), "dot_product_attention"),
    ("linen_norm", lambda s: flax.linen.LayerNorm().apply({"params": SCALES}, X * s), "_compute_stats"),
    ("l2_loss", lambda s: optax.l2_loss(X * s), "squared_error"),
    ("squared_error", lambda s: optax.squared_error(X * s, X), "squared_error"),
    ("safe_norm", lambda s: optax.safe_norm(X * s, 0.0), "safe_norm"),
    ("cosine_similarity", lambda s: optax.cosine_similarity(X * s, X), "cosine_similarity"),
    ("sigmoid_bce", lambda s: optax.sigmoid_binary_cross_entropy(X * s, X * s), "sigmoid_binary_cross_entropy"),
    ("softmax_ce", lambda s: optax.softmax_cross_entropy(X * s, X * s), "softmax_cross_entropy"),
    ("global_norm", lambda s: optax.global_norm([X * s]), "global_norm"),
    ("kl", lambda s: optax.kl_divergence(X * s, X * s), "kl_divergence"),
    ("adam", lambda s: optax.scale_by_adam().update(X * s, optax.scale_by_adam().init(X)), "scale_by_adam"),
]


LOOKED_INTO = [optax, "jax.nn", "flax.linen.attention", "flax.linen.normalization", "flax.nnx.nn.attention", equinox.nn]


@pytest.mark.parametrize("iteration", range(5))
@pytest.mark.parametrize(("name", "run", "function"), PLANTED, ids=[name for name, *_ in PLANTED])
def test_planted_overflows_are_named(name, run, function, iteration):
    """In one iteration of a loop the numbers are too large; before, they are fine."""

    def program(scales):
        return jax.lax.scan(lambda c, s: (c, jax.tree.leaves(run(s))[0].sum()), 0.0, scales)[1]

    scales = jnp.full(6, 1e-3, jnp.float32).at[iteration].set(HUGE / 4)
    found = sonde.first_nonfinite(jax.jit(program), inside=LOOKED_INTO, discarded=True)(scales)
    assert found is not None
    # Some functions divide by the overflow, or saturate: their results are finite, and the answer says so.
    assert found.discarded == bool(jnp.isfinite(jax.jit(program)(scales)).all())
    assert found.discarded or function in found.path, found.path
    assert found.iteration == (iteration,)
    file, _, line = found.source.rpartition(":")
    text = open(file).read().splitlines()[int(line) - 1]
    # What JAX's own functions compute has the line of their call in the user's code.
    names = {*found.path.split("/"), found.variable, function} - {""}
    assert found.path.endswith("/return") or any(name in text for name in names), (names, text)
