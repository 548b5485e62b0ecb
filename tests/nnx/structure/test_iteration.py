"""Iterating over a model: what is visited, in which order, and duplicates."""

import jax
import optax
import pytest
from tests.nnx.graphs import shared, tree

from sonde import nnx


def test_iteration(same):
    def paths(nnx, **options):
        mine = [(p, type(v).__name__) for p, v in nnx.iter_graph(tree(nnx), **options)]
        return [x for x in mine if not any(str(k).startswith("_") for k in x[0])]

    same(paths)
    same(lambda nnx: paths(nnx, graph=False))
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_modules(tree(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_modules(shared(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_modules(tree(nnx), graph=False)])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_children(tree(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in nnx.iter_module_children(tree(nnx))])
    same(lambda nnx: [(p, type(m)) for p, m in tree(nnx).iter_children()])
    same(lambda nnx: [p for p, m in tree(nnx).iter_modules()])


def test_what_is_in_static_attributes(same):
    def paths(nnx):
        class Holder(nnx.Module):
            def __init__(self):
                self.transform = optax.sgd(0.1)
                self.partial = nnx.static(jax.tree_util.Partial(abs, 3, key=[4]))
                self.nested = nnx.static({"a": [optax.EmptyState(), (1,)]})
                self.spec = jax.sharding.PartitionSpec("x")

        found = [(path, type(value).__name__) for path, value in nnx.iter_graph(Holder())]
        return [x for x in found if not any(str(key).startswith("_") for key in x[0])]

    same(paths)


def test_duplicates(same):
    same(lambda nnx: nnx.find_duplicates(shared(nnx)))
    same(lambda nnx: nnx.find_duplicates(shared(nnx), only=nnx.Module))
    same(lambda nnx: nnx.find_duplicates(tree(nnx)))


def test_a_model_comes_after_what_is_inside_and_what_is_shared_comes_once():
    model = shared(nnx)
    paths = [path for path, _ in nnx.iter_graph(model)]
    assert paths == [("a",), ("arr",), ("b",), ("same", "n"), ("same", "w"), ("same",), ()]
    values = [id(value) for _, value in nnx.iter_graph(model) if isinstance(value, (nnx.Variable, nnx.Module))]
    assert len(set(values)) == len(values)


def test_children_of_containers_and_of_nothing():
    w = nnx.Param(1)
    assert list(nnx.iter_children({"b": w, "a": 3})) == [("b", w)]
    assert list(nnx.iter_children([[w], w])) == [(1, w)]  # right below, and no further
    for wrong in (3, None):
        with pytest.raises(TypeError, match="iter_children takes a node or a container"):
            list(nnx.iter_children(wrong))


def test_duplicates_in_plain_containers_and_of_an_object_in_itself():
    w, inner = nnx.Param(1), nnx.Dict(n=1)
    assert nnx.find_duplicates([w, {"x": w}]) == [[(0,), (1, "x")]]
    assert nnx.find_duplicates([w, inner, w, inner], only=nnx.Param) == [[(0,), (2,)]]
    inner.me = inner
    assert nnx.find_duplicates(inner) == [[(), ("me",)]]
    assert nnx.find_duplicates(3) == []
