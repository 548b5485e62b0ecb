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
        "Dropout: dropping with rate=0.5 draws random numbers, and neither the constructor nor the call has `rngs` to "
        "draw from. Write nnx.Dropout(..., rngs=rngs) or dropout(x, rngs=rngs)."
    )
    with pytest.raises(LayerInputError, match="or a random key, got int"):
        nnx.Dropout(0.5)(draw(3), rngs=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Dropout: nothing says what `deterministic` is. Say it in"):
        nnx.Dropout(0.5, deterministic=None)(draw(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`rngs` takes an nnx.Rngs, an nnx.RngStream or None, got "):
        nnx.Dropout(0.5, rngs=jax.random.key(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"dtype": jnp.bfloat16}, {"param_dtype": jnp.bfloat16}], ids=str)
def test_lora(same, draw, options):
    x = draw(4, 3)

    def make(n, rngs):
        return n.LoRA(3, 2, 5, b_initializer=n.initializers.normal(), rngs=rngs, **options)

    same(make, lambda n, m: m(x))


def test_lora_beside_a_layer(same, draw):
    x = draw(4, 3)

    def make(n, rngs):
        base = n.Linear(3, 5, rngs=rngs)
        return n.LoRA(3, 2, 5, base_module=base, b_initializer=n.initializers.normal(), rngs=rngs)

    same(make, lambda n, m: m(x))


def test_lora_linear(same, draw):
    x = draw(4, 3)

    def make(n, rngs):
        return n.LoRALinear(3, 5, lora_rank=2, b_initializer=n.initializers.normal(), use_bias=False, rngs=rngs)

    same(make, lambda n, m: m(x))
    assert issubclass(nnx.LoRAParam, nnx.Param)


@pytest.mark.parametrize("options", [{}, {"dtype": jnp.bfloat16}, {"param_dtype": jnp.bfloat16}], ids=str)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_prelu(same, draw, options, dtype):
    x = draw(4, 3, dtype=dtype)
    same(lambda n, rngs: n.PReLU(0.3, **options), lambda n, m: m(x))
