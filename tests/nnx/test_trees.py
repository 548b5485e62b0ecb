"""Objects with shared references as trees, and prefixes of them."""

import jax
import pytest
from tests.nnx.graphs import shared, tree

from sonde import nnx


def test_trees_with_shared_references():
    m = shared(nnx)
    one, two, n = nnx.from_tree(nnx.to_tree((m, m, 3)))
    assert one is two and one is not m and one.a is m.a and n == 3
    doubled = nnx.from_tree(jax.tree.map(lambda x: x * 2, nnx.to_tree((m, m.sub))))
    assert doubled[0].sub is doubled[1] and doubled[0].a.sum() == 4


def test_prefix(same):
    same(lambda nnx: nnx.prefix({"a": nnx.Param(1), "b": nnx.BatchStat(2)}, {nnx.Param: 0, ...: None}, graph=False))
    axes = nnx.prefix(tree(nnx), {nnx.Param: 0, ...: 1})
    assert jax.tree.leaves(axes) == [1, 1, 0, 1, 0, 1, 0, 0]
    with pytest.raises(ValueError, match=r"arr \(ArrayImpl\) is matched by no filter"):
        nnx.prefix(tree(nnx), {nnx.Variable: 0}, graph=False)


def test_an_object_is_a_tree_of_its_leaves_and_a_second_one_has_none():
    model = tree(nnx)
    first, second, plain = nnx.to_tree((model, [model], 2.5))
    assert first.leaves == [leaf for _, leaf in nnx.to_flat_state(nnx.state(model))]
    assert second[0].leaves == []
    assert plain == 2.5


def test_paths_of_leaves_are_keys():
    (found, *_) = jax.tree_util.tree_leaves_with_path(nnx.to_tree({"m": nnx.Dict(a=nnx.Dict(w=nnx.Param(1.0)))}))
    assert jax.tree_util.keystr(found[0]).startswith("['m'].a/w")


def test_a_variable_that_is_alone():
    w = nnx.Param(2.0)
    one, two = nnx.from_tree(nnx.to_tree((w, w)))
    assert one is two
    assert one.get_value() == 2.0


def test_prefixes_by_a_function_and_of_shared_variables():
    model = shared(nnx)
    found = nnx.prefix(model, lambda path, leaf: "/".join(map(str, path)))
    assert sorted(jax.tree.leaves(found)) == ["a", "arr", "b", "c", "same/w", "sub/w"]  # every place of what is shared
    for graph in (True, False):
        assert nnx.prefix((1.0, {"x": "y"}), lambda path, leaf: path, graph=graph) == ((0,), {"x": (1, "x")})
