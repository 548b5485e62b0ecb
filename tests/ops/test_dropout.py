"""Dropout against Flax."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import pytest

from sonde import ops
from sonde.errors import LayerInputError


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("broadcast_dims", [(), (0,), (0, -1)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_dropout_equals_flax(draw, close, rate, broadcast_dims, dtype):
    x, key = draw(4, 5, 3, dtype=dtype), jax.random.key(2)
    layer = fnnx.Dropout(rate, broadcast_dims=broadcast_dims)
    close(ops.dropout(x, key, rate=rate, broadcast_dims=broadcast_dims), layer(x, rngs=key))


def test_the_gradient_is_finite_where_all_is_dropped(draw):
    grad = jax.grad(lambda x: ops.dropout(x, jax.random.key(0), rate=1.0).sum())(draw(3))
    assert jnp.all(grad == 0)


def test_a_missing_key_is_said(draw):
    with pytest.raises(LayerInputError, match="dropping with rate=0.5 needs a random key, got None"):
        ops.dropout(draw(3), None, rate=0.5)
    assert jnp.all(ops.dropout(draw(3), None, rate=1.0) == 0)


def test_a_rate_that_is_no_probability_is_said(draw):
    with pytest.raises(LayerInputError) as caught:
        ops.dropout(draw(3), jax.random.key(0), rate=1.5)
    assert str(caught.value) == "`rate` must be a probability, from 0 to 1, got 1.5."
