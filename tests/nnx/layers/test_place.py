"""Errors of layers name the path of the layer in the model."""

from __future__ import annotations

import sys

import jax
import pytest

from sonde import nnx
from sonde.errors import LayerInputError
from sonde.nnx.layers.place import names_its_place, place_of


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


class Layer(nnx.Module):
    def __init__(self, place=None):
        self.place = place

    @names_its_place
    def __call__(self):
        """Fails."""
        raise LayerInputError("no", place=self.place)


def run(model):
    return model.parts["a"][1]()


def test_the_path_counts_from_the_outermost_running_module():
    inner = nnx.Dict(parts=nnx.data({"a": [Layer(), Layer()]}))
    model = nnx.Dict(inner=inner)

    def outer(model):
        return run(model.inner)

    with pytest.raises(LayerInputError) as caught:
        outer(model)
    assert caught.value.place == "Layer at inner/parts/a/1"
    with pytest.raises(LayerInputError) as caught:
        Layer()()
    assert caught.value.place == "Layer"


def test_a_place_that_is_known_is_kept_and_other_errors_are_left_alone():
    with pytest.raises(LayerInputError) as caught:
        Layer("Linear at head")()
    assert caught.value.place == "Linear at head"

    class Other(nnx.Module):
        @names_its_place
        def __call__(self):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="^mine$"):
        Other()()
    assert (Layer.__call__.__name__, Layer.__call__.__doc__) == ("__call__", "Fails.")


def test_a_module_that_does_not_contain_the_layer_is_no_place():
    unrelated = nnx.Dict(x=Layer())
    assert place_of(Layer(), sys._getframe()) == "Layer"
    del unrelated
