"""Errors of layers say where in the model the layer stands."""

from __future__ import annotations

import jax
import pytest

from sonde import nnx
from sonde.errors import LayerInputError


class Model(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([nnx.Linear(3, 3, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def test_an_error_says_where_in_the_model(draw):
    words = (
        "Linear at blocks/1: `inputs` has the wrong number of input features: expected 4 along axis -1, got 3 in "
        "float32[2,3]."
    )
    model = Model(nnx.Rngs(0))
    with pytest.raises(LayerInputError) as caught:
        model(draw(2, 3))
    assert str(caught.value) == words

    def inside(model, x):
        return jax.jit(lambda x: model(x))(x)

    with pytest.raises(LayerInputError) as caught:
        inside(Model(nnx.Rngs(0)), draw(2, 3))
    assert str(caught.value) == words
