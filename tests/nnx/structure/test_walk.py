import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx.structure.build import build
from sonde.nnx.structure.walk import walk


def test_what_a_walk_finds():
    w = nnx.Param(1.0)
    model = nnx.Dict(a=w, b=nnx.Dict(w=w, x=jnp.ones(2)), n=3)
    found = walk(model, graph=True, verb="test")
    assert found.paths == [("a",), ("b", "x")] and found.leaves[0] is w
    assert [path for path, _ in found.nodes] == [("b",), ()]
    assert not found.loose


def test_several_roots_are_numbered_as_one():
    a = nnx.Dict(w=nnx.Param(1.0))
    seen: dict[int, int] = {}
    first = walk(nnx.Dict(a=a), graph=True, verb="test", seen=seen)
    second = walk(a, graph=True, verb="test", seen=seen)
    assert len(first.leaves) == 1 and not second.leaves and len(seen) == 3


def test_a_node_can_be_walked_again():
    w, new = nnx.Param(1.0), nnx.Param(2.0)
    model, seen = nnx.Dict(w=w), {}
    walk(model, graph=True, verb="test", seen=seen)
    model.new = new
    found = walk(model, graph=True, verb="test", seen=seen, again=True)
    assert found.leaves == [new] and found.definition[2] == seen[id(model)]


def test_trees_name_both_paths_of_an_alias():
    w = nnx.Param(1.0)
    with pytest.raises(ValueError, match=r"Duplicate Param found at paths:\n\n  - a\n  - b/w"):
        walk(nnx.Dict(a=w, b=nnx.Dict(w=w)), graph=False, verb="test")


def test_lists_and_dicts_that_change_unannounced():
    loose = [nnx.Param(1.0)]
    found = walk(nnx.Dict(x=nnx.data(loose), s=nnx.data(nnx.State({"a": {"b": 1.0}}))), graph=True, verb="test")
    assert found.loose == [loose]


def test_a_walk_keeps_nothing_alive():
    import gc
    import weakref

    model = nnx.Dict(w=nnx.Param(1.0))
    ref = weakref.ref(model)
    definition = walk(model, graph=True, verb="test").definition
    gc.disable()
    try:
        del model
        assert ref() is None
    finally:
        gc.enable()
    assert build(definition, [5.0]).w.get_value() == 5.0
