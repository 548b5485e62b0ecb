"""Copies of a model with other leaves or other nodes."""

import pytest
from tests.nnx.graphs import shared, tree

from sonde import nnx


def test_mapping(same):
    same(lambda nnx: nnx.map(lambda path, x: x * 2, shared(nnx)))
    same(lambda nnx: nnx.map(lambda path, x: x * 2, tree(nnx), graph=False))
    same(lambda nnx: nnx.map(lambda path, x: path, tree(nnx), recreate_variables=False).w)

    def recursive(nnx, **options):
        seen = []

        def f(path, value):
            if not any(str(k).startswith("_") for k in path):
                seen.append((path, type(value).__name__))
            return value

        m = tree(nnx)
        out = nnx.recursive_map(f, m, **options)
        return seen, out is m, out.w is m.w

    same(recursive)
    same(lambda nnx: recursive(nnx, graph=False))


def test_set_metadata_and_with_vars(same):
    def use(nnx):
        m = tree(nnx)
        nnx.set_metadata(m, frozen=True, only=nnx.BatchStat)
        nnx.set_metadata(m, seen=1)
        other = nnx.with_vars(m)
        return m, other, other.w is m.w

    same(use)


def test_what_is_shared_is_mapped_once_and_stays_shared():
    calls = []
    model = shared(nnx)
    copy = nnx.map(lambda path, leaf: calls.append(path) or leaf, model)
    assert copy.a is copy.c
    assert copy.sub is copy.same
    assert len(calls) == len(set(calls)) == 4
    assert copy is not model


def test_bare_values_get_a_variable_like_the_old_one_unless_told_otherwise():
    model = nnx.Dict(w=nnx.BatchStat(1.0, mine=2))
    copy = nnx.map(lambda path, leaf: 5.0, model)
    assert (type(copy.w), copy.w.mine, copy.w.get_value()) == (nnx.BatchStat, 2, 5.0)
    assert nnx.map(lambda path, leaf: 5.0, model, recreate_variables=False).w == 5.0
    assert model.w.get_value() == 1.0


def test_a_recursive_map_sees_the_children_that_it_returned():
    def f(path, value):
        return "leaf" if path == ("inner", "w") else (value if path else ("root", value.inner.w))

    assert nnx.recursive_map(f, nnx.Dict(inner=nnx.Dict(w=nnx.Param(1)))) == ("root", "leaf")


def test_entries_that_stay_share_their_variables():
    model = nnx.Dict(a=nnx.Param(1), b=nnx.BatchStat(2))
    copy = nnx.with_vars(model, ref=True, only=nnx.Param)
    assert (copy.a.ref, copy.b is model.b, model.a.ref) == (True, True, False)
    with pytest.raises(ValueError, match="can always be changed"):
        nnx.with_vars(model, mutable=False)
