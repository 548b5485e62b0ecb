"""Leaves taken out of models, compared with Flax; more in `test_graph.py`."""

import jax.numpy as jnp
import pytest
from tests.nnx.graphs import shared

from sonde import nnx

FILTERS = [
    lambda nnx: (nnx.Param,),
    lambda nnx: (nnx.PathContains("d"),),
    lambda nnx: (nnx.Not(nnx.PathContains("d")),),
    lambda nnx: (nnx.BatchStat, ...),
]


@pytest.mark.parametrize("filters", FILTERS)
def test_a_shared_variable_is_taken_from_one_place(same, filters):
    def run(nnx):
        model = nnx.Dict(b=nnx.Dict(h=nnx.Param(jnp.ones(2))), z=nnx.BatchStat(jnp.ones(1)))
        model.d, model.again = model.b.h, model.b
        return nnx.pop(model, *filters(nnx)), nnx.state(model), sorted(map(str, model))

    assert same(run)[0] != "raised"


def test_numbers_among_the_data_stay(same):
    def run(nnx):
        model = nnx.Dict(c=nnx.Param(jnp.ones(2)), d=jnp.ones(2))
        model.c = 3
        return nnx.pop(model, ...), nnx.state(model)

    assert same(run)[0] != "raised"


def test_what_cannot_be_changed_is_named():
    model = nnx.Dict(t=nnx.data((nnx.Param(1.0),)))
    with pytest.raises(ValueError, match="Cannot pop '0' out of a tuple"):
        nnx.pop(model, nnx.Param)
    assert len(nnx.to_flat_state(nnx.state(model))) == 1
    assert nnx.pop(shared(nnx), nnx.Param)
