"""`nnx.compat`: shared references and changes of structure, whatever the current mode is."""

import jax.numpy as jnp
import pytest

from flax import nnx as flax_nnx
from sonde import nnx


def shared():
    w = nnx.Param(jnp.array(2.0))
    return nnx.Dict(a=w, b=w)


def test_shared_references_work_where_trees_are_demanded():
    model = shared()
    with nnx.set_graph_mode(False), nnx.set_graph_updates(False):
        with pytest.raises(ValueError, match="Duplicate Param"):
            nnx.split(model)
        merged = nnx.merge(*nnx.compat.split(model))
        assert merged.a is merged.b
        assert list(nnx.compat.state(model)) == ["a"]
        gradient = nnx.compat.grad(lambda m: m.a[...] * m.b[...])(model)
        assert float(gradient["a"][...]) == 4.0


def test_changes_of_structure_reach_the_caller():
    def add(model):
        model.c = nnx.Param(jnp.array(1.0))
        return model.a[...] + 1

    plain, model = shared(), shared()
    with nnx.set_graph_updates(False):
        nnx.jit(add)(plain)
        assert float(nnx.compat.jit(add)(model)) == 3.0
    assert not hasattr(plain, "c")
    assert float(model.c[...]) == 1.0


def test_options_and_decorators_go_through():
    seen = []

    @nnx.compat.jit(static_argnums=1)
    def f(model, n):
        seen.append(n)
        return model.a[...] * n

    with nnx.set_graph_mode(False):
        assert float(f(shared(), 3)) == 6.0
    assert seen == [3]


def test_the_names_are_those_of_flax():
    theirs = {name for name in dir(flax_nnx.compat) if not name.startswith("_") and callable(getattr(nnx, name, None))}
    assert theirs <= set(dir(nnx.compat))
    with pytest.raises(AttributeError, match="module 'sonde.nnx.compat' has no attribute 'nonsense'"):
        nnx.compat.nonsense
