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
