"""Layers whose parameters are normalized."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from sonde import nnx


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["Linear", "Conv"])
@pytest.mark.parametrize("options", [{}, {"n_steps": 3}, {"dtype": jnp.bfloat16}, {"update_stats": False}], ids=str)
def test_spectral_norm(same, draw, kind, options):
    x = draw(4, 5, 3)

    def make(n, rngs):
        inner = n.Linear(3, 4, rngs=rngs) if kind == "Linear" else n.Conv(3, 4, 3, rngs=rngs)
        return n.SpectralNorm(inner, rngs=rngs, **options)

    same(make, lambda n, m: (m(x), m(x), m(x, update_stats=False)))


@pytest.mark.parametrize("options", [{}, {"use_scale": False}, {"feature_axes": None}, {"feature_axes": 0}], ids=str)
def test_weight_norm(same, draw, options):
    x = draw(4, 5, 3)

    def make(n, rngs):
        return n.WeightNorm(n.Linear(3, 4, rngs=rngs), rngs=rngs, **options)

    # Flax 0.12.8 keeps scales as bare arrays that no gradient reaches; newer ones, as we do, as parameters.
    same(make, lambda n, m: m(x), gradients=False)
    if options.get("use_scale", True):
        layer = make(nnx, nnx.Rngs(0))
        assert all(isinstance(scale, nnx.Param) for scale in layer.scales.values())
