import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx.structure.nodes import ArrayAttr, NodeDef, NodeRef, TreeNodeDef, VariableDef


def test_the_parts_of_a_structure():
    w = nnx.Param(1.0)
    nodes = nnx.graphdef(nnx.Dict(a=w, b=w, c=jnp.ones(2), d=nnx.List([3]))).nodes
    assert nodes == [
        NodeDef(nnx.Dict, 0),
        VariableDef(nnx.Param, 1),
        NodeRef(1),
        ArrayAttr(),
        NodeDef(nnx.List, 2),
    ]


def test_trees_are_one_part():
    assert nnx.graphdef(nnx.Dict(a=nnx.Param(1.0)), graph=False).nodes == [TreeNodeDef(nnx.Dict, ((("a",), 0),))]
    assert nnx.graphdef([1, nnx.Param(1.0)], graph=False).nodes == [TreeNodeDef(list, (((0,), 0), ((1,), 1)))]
    assert nnx.graphdef(nnx.Param(1.0), graph=False).nodes == [TreeNodeDef(nnx.Param, (((), 0),))]


@pytest.mark.parametrize("graph", [True, False])
def test_a_lone_leaf_is_its_own_state(same, graph):
    def use(n):
        v, x = n.Param(jnp.array(1)), jnp.array(2.0)
        graphdef, stats, params, rest = n.split(v, n.BatchStat, n.Param, ..., graph=graph)
        kinds = [isinstance(s, n.State) for s in (stats, params, rest)]
        merged = n.merge(graphdef, stats, params, rest)
        params[...] = 5
        n.update(v, stats, params, rest)
        other, array, nothing = n.split(x, jax_array, ..., graph=graph)
        return kinds, type(merged).__name__, v[...], array is x, n.merge(other, array, nothing) is x

    same(use)


def jax_array(path, x):
    return hasattr(x, "dtype")


def test_objects_that_are_no_trees(same):
    def use(n):
        class Not(n.Pytree, pytree=False):
            def __init__(self):
                self.x = 1

        out = []
        for f in (
            lambda: n.split([Not()], graph=False),
            lambda: list(n.iter_graph(n.List([Not()]), graph=False)),
            lambda: list(n.iter_children(Not(), graph=False)),
        ):
            try:
                out.append(f())
            except ValueError as error:
                out.append("pytree=False" in str(error))
        return out

    assert same(use) == [True, True, True]


def test_attributes_of_a_graph_state(same):
    def use(n):
        state = n.unpack(n.Dict(a=n.Dict(w=n.Param(1.0))))
        return state.a.w.get_value(), state["a"]["w"].get_value(), hasattr(state, "nothing")

    same(use)
