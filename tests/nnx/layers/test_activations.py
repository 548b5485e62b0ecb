"""Activations with a parameter, compared with Flax's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import nnx


@pytest.mark.parametrize("options", [{}, {"dtype": jnp.bfloat16}, {"param_dtype": jnp.bfloat16}], ids=str)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_prelu(same, draw, options, dtype):
    x = draw(4, 3, dtype=dtype)
    same(lambda n, rngs: n.PReLU(0.3, **options), lambda n, m: m(x))


def test_the_slope_is_learnt_from_negative_inputs():
    layer, x = nnx.PReLU(0.5), jnp.array([-2.0, 3.0, 0.0, -1.0])
    np.testing.assert_array_equal(layer(x), [-1.0, 3.0, 0.0, -0.5])
    slope = nnx.grad(lambda layer: layer(x).sum())(layer)["negative_slope"][...]
    assert float(slope) == -3.0
    inputs = jax.grad(lambda x: layer(x).sum())(jnp.array([-2.0, 3.0]))
    np.testing.assert_array_equal(inputs, [0.5, 1.0])
