"""Low-rank corrections of a layer, compared with Flax's."""

from __future__ import annotations

import flax.nnx as flax_nnx
import jax.numpy as jnp
import pytest

from sonde import nnx


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


def test_the_layer_beside_gets_its_input_in_the_dtype_of_the_correction(draw):
    x = draw(4, 3)

    def run(n):
        base = n.Linear(3, 5, rngs=n.Rngs(0))
        return n.LoRA(3, 2, 5, base_module=base, dtype=jnp.bfloat16, rngs=n.Rngs(1))(x)

    assert jnp.array_equal(run(nnx), run(flax_nnx))


def test_lora_linear(same, draw):
    x = draw(4, 3)

    def make(n, rngs):
        return n.LoRALinear(3, 5, lora_rank=2, b_initializer=n.initializers.normal(), use_bias=False, rngs=rngs)

    same(make, lambda n, m: m(x))
    assert issubclass(nnx.LoRAParam, nnx.Param)
