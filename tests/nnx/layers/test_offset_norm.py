"""RMSNorm with its scale stored as the distance from one."""

import jax.numpy as jnp
import numpy as np

from sonde import nnx

X = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32) * 5


def by_hand(x, scale, epsilon=1e-6):
    x = x.astype(np.float64)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * (1 + scale)


def test_the_formula():
    norm = nnx.OffsetRMSNorm(4, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(norm.scale[...], np.zeros(4))
    np.testing.assert_allclose(norm(jnp.asarray(X)), by_hand(X, 0), rtol=1e-5)
    scale = np.array([1.0, -0.5, 0.0, 3.0], np.float32)
    norm.scale[...] = jnp.asarray(scale)
    np.testing.assert_allclose(norm(jnp.asarray(X)), by_hand(X, scale), rtol=1e-5)


def test_a_small_scale_is_not_lost_in_bfloat16():
    """One plus a thousandth is one in bfloat16: the sum must be made before the parameters are rounded."""
    norm = nnx.OffsetRMSNorm(4, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    plain = norm(jnp.asarray(X))
    norm.scale[...] = jnp.full(4, 0.001, jnp.bfloat16)
    np.testing.assert_allclose(norm(jnp.asarray(X)) / plain, 1.001, rtol=1e-5)


def test_the_result_has_the_dtype_of_the_inputs_or_that_of_the_layer():
    norm = nnx.OffsetRMSNorm(4, rngs=nnx.Rngs(0))
    assert norm(jnp.asarray(X, jnp.bfloat16)).dtype == jnp.bfloat16
    assert nnx.OffsetRMSNorm(4, dtype=jnp.float16, rngs=nnx.Rngs(0))(jnp.asarray(X)).dtype == jnp.float16


def test_without_a_scale_it_is_a_plain_norm():
    bare = nnx.OffsetRMSNorm(4, use_scale=False, rngs=nnx.Rngs(0))
    assert bare.scale is None
    np.testing.assert_allclose(bare(jnp.asarray(X)), by_hand(X, 0), rtol=1e-5)


def test_masked_features_do_not_count():
    mask = jnp.array([True, True, False, False])
    x = X.copy()
    x[:, 2:] = 1e6
    found = nnx.OffsetRMSNorm(4, rngs=nnx.Rngs(0))(jnp.asarray(x), mask=mask)
    np.testing.assert_allclose(found[:, :2], by_hand(X[:, :2], 0), rtol=1e-5)
