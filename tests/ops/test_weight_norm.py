"""Normalized weights against Flax."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import ops
from sonde.errors import LayerInputError


def inner(kind):
    rngs = fnnx.Rngs(0)
    return fnnx.Linear(3, 4, rngs=rngs) if kind == "linear" else fnnx.Conv(3, 4, (3,), rngs=rngs)


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
@pytest.mark.parametrize("feature_axes", [-1, None, 0])
def test_weight_norm_equals_flax(draw, close, kind, dtype, feature_axes):
    layer = inner(kind)
    kernel = layer.kernel[...]
    wrapped = fnnx.WeightNorm(layer, feature_axes=feature_axes, dtype=dtype, rngs=fnnx.Rngs(1))
    scale = draw(*wrapped.scales[("kernel",)].shape)
    wrapped.scales[("kernel",)] = scale
    wrapped(draw(2, 5, 3))
    close(ops.weight_norm(kernel, scale, feature_axes=feature_axes, dtype=dtype), layer.kernel[...])


@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_spectral_norm_equals_flax(draw, close, kind, n_steps):
    layer = inner(kind)
    kernel = layer.kernel[...]
    wrapped = fnnx.SpectralNorm(layer, n_steps=n_steps, rngs=fnnx.Rngs(1))
    u = wrapped.batch_stats[("kernel", "u")][...]
    wrapped(draw(2, 5, 3), update_stats=True)
    ours = ops.spectral_norm(kernel, u, n_steps=n_steps)
    stats = wrapped.batch_stats
    close(ours, (layer.kernel[...], stats[("kernel", "u")][...], stats[("kernel", "sigma")][...]))


def test_many_steps_find_the_largest_singular_value(draw):
    weight = draw(6, 4)
    _, _, sigma = ops.spectral_norm(weight, ops.initial_u(jax.random.key(0), 4), n_steps=200)
    np.testing.assert_allclose(sigma, np.linalg.svd(weight, compute_uv=False)[0], rtol=1e-5)


def test_what_does_not_fit_is_said(draw):
    with pytest.raises(LayerInputError) as caught:
        ops.spectral_norm(draw(3), draw(1, 3))
    assert str(caught.value) == "spectral norm needs a weight with at least two axes, got float32[3]."
    with pytest.raises(LayerInputError) as caught:
        ops.spectral_norm(draw(3, 3), draw(1, 3), n_steps=0)
    assert str(caught.value) == "`n_steps` must be at least 1, got 0."
