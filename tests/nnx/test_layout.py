"""Layouts: which attributes an object has, shared by all that have the same."""

from sonde import nnx


def test_layouts_are_shared():
    a, b = nnx.Dict(x=1, w=nnx.Param(1)), nnx.Dict(w=nnx.Param(2), x=2)
    assert a._layout is b._layout
    assert nnx.List([1, nnx.Param(2)])._structure()[0] is nnx.List([3, nnx.Param(4)])._structure()[0]
