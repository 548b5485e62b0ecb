"""Changing a model in place."""

import jax
import jax.numpy as jnp
import pytest
from tests.nnx.graphs import shared, tree

from sonde import errors, nnx

UPDATES = {
    "array": lambda nnx: {"a": jnp.zeros(2)},
    "variable": lambda nnx: {"a": nnx.Param(jnp.zeros(2), k=1)},
    "other type": lambda nnx: {"a": nnx.BatchStat(7)},
    "alias": lambda nnx: {"c": nnx.Param(7)},
    "plain attribute": lambda nnx: {"arr": jnp.zeros(2)},
    "nested": lambda nnx: {"sub": {"w": 5}},
    "new": lambda nnx: {"new": nnx.Param(1)},
    "new static": lambda nnx: {"zz": 3},
    "dict into variable": lambda nnx: {"a": {"x": 1}},
    "state": lambda nnx: nnx.map_state(lambda p, x: x * 3, nnx.state(shared(nnx))),
}


@pytest.mark.parametrize("name", UPDATES)
def test_update(same, name):
    def use(nnx):
        m = shared(nnx)
        before = m.a
        nnx.update(m, UPDATES[name](nnx))
        return m, m.a is before, m.a is m.c

    same(use)


def test_an_update_that_fails_changes_nothing():
    m = tree(nnx)
    m.pair = nnx.data((jnp.ones(1), nnx.Param(1.0)))
    nnx.update(m, {"pair": {1: 5.0}})
    assert m.pair[1].get_value() == 5.0
    with pytest.raises(ValueError, match="Cannot update pair/0: its parent is a tuple"):
        nnx.update(m, {"w": jnp.zeros(2), "pair": {0: jnp.zeros(1)}})
    assert m.w.sum() == 2

    def inside(x):
        nnx.update(m, {"w": x})

    with pytest.raises(errors.TraceContextError):
        jax.jit(inside)(jnp.zeros(2))
    assert m.w.sum() == 2
