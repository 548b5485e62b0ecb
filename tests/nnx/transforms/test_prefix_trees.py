"""Prefixes of models."""

import importlib

import jax
import pytest
from tests.nnx.graphs import shared, tree

from sonde import nnx


def test_prefix(same):
    same(lambda nnx: nnx.prefix({"a": nnx.Param(1), "b": nnx.BatchStat(2)}, {nnx.Param: 0, ...: None}, graph=False))
    axes = nnx.prefix(tree(nnx), {nnx.Param: 0, ...: 1})
    assert jax.tree.leaves(axes) == [1, 1, 0, 1, 0, 1, 0, 0]
    with pytest.raises(ValueError, match=r"No value found for path=\('arr',\) \(ArrayImpl\): no filter of"):
        nnx.prefix(tree(nnx), {nnx.Variable: 0}, graph=False)


def test_prefixes_by_a_function_and_of_shared_variables():
    model = shared(nnx)
    found = nnx.prefix(model, lambda path, leaf: "/".join(map(str, path)))
    assert sorted(jax.tree.leaves(found)) == ["a", "arr", "b", "c", "same/w", "sub/w"]  # every place of what is shared
    for graph in (True, False):
        assert nnx.prefix((1.0, {"x": "y"}), lambda path, leaf: path, graph=graph) == ((0,), {"x": (1, "x")})


def test_the_values_of_a_prefix_by_path(same):
    def run(nnx):
        extract = importlib.import_module(f"{nnx.__name__}.extract")
        model = nnx.Dict(w=nnx.Param(1.0), inner=nnx.Dict(b=nnx.BatchStat(2.0)))
        found = nnx.prefix(model, {nnx.Param: "p", ...: "rest"}, graph=True)
        return isinstance(found, extract.TreeState), found.state["w"], found.state["inner"]["b"]

    assert same(run) == (True, "p", "rest")
