"""The activation with a parameter of its own, as Flax's."""

from __future__ import annotations

import jax.numpy as jnp
import pytest


@pytest.mark.parametrize("options", [{}, {"dtype": jnp.bfloat16}, {"param_dtype": jnp.bfloat16}], ids=str)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_prelu(same, draw, options, dtype):
    x = draw(4, 3, dtype=dtype)
    same(lambda n, rngs: n.PReLU(0.3, **options), lambda n, m: m(x))
