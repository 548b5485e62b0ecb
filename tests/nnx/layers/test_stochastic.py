"""Dropout, low-rank adaptation and the parametric activation against Flax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.errors import LayerInputError


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("options", [{}, {"broadcast_dims": (0,)}, {"deterministic": True}], ids=str)
def test_dropout(same, draw, rate, options):
    x = draw(4, 5)
    same(lambda n, rngs: n.Dropout(rate, rngs=rngs, **options), lambda n, m: (m(x), m(x)))


def test_dropout_with_streams_of_the_call(same, draw):
    x = draw(4, 5)

    def call(n, m):
        return m(x, rngs=n.Rngs(dropout=3)), m(x, rngs=n.Rngs(5).default), m(x, rngs=jax.random.key(1))

    same(lambda n, rngs: n.Dropout(0.5), call)


def test_dropout_of_another_stream(same, draw):
    x = draw(4, 5)
    same(lambda n, rngs: n.Dropout(0.5, rng_collection="noise", rngs=rngs), lambda n, m: m(x))
    same(lambda n, rngs: n.Dropout(0.5, rngs=rngs.dropout), lambda n, m: m(x))


def test_train_and_eval_switch_dropout(draw):
    layer, x = nnx.Dropout(0.5, rngs=nnx.Rngs(0)), draw(4, 5)
    layer.eval()
    assert jnp.array_equal(layer(x), x)
    assert not jnp.array_equal(layer(x, deterministic=False), x)
    layer.train()
    assert not jnp.array_equal(layer(x), x)
    assert nnx.view(layer, deterministic=True).deterministic is True


def test_what_is_missing_is_said(draw):
    with pytest.raises(LayerInputError) as caught:
        nnx.Dropout(0.5)(draw(3))
    assert str(caught.value) == (
        "Dropout: dropping with rate=0.5 draws random numbers, but neither the constructor nor the call has `rngs` to "
        "draw from. Write nnx.Dropout(..., rngs=rngs) or dropout(x, rngs=rngs)."
    )
    with pytest.raises(LayerInputError, match="or a random key, got int"):
        nnx.Dropout(0.5)(draw(3), rngs=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Dropout: `deterministic` is not set. Set it in"):
        nnx.Dropout(0.5, deterministic=None)(draw(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`rngs` takes an nnx.Rngs, an nnx.RngStream or None, got "):
        nnx.Dropout(0.5, rngs=jax.random.key(0))  # type: ignore[arg-type]
