"""Filters choose what Flax's choose, compare by content, and say what is wrong with them."""

import pytest
from tests.nnx.nested_state import make

from sonde import nnx
from sonde.nnx import filterlib

FILTERS = {
    "type": lambda nnx: nnx.Param,
    "base type": lambda nnx: nnx.Variable,
    "tag": lambda nnx: "head",
    "...": lambda nnx: ...,
    "True": lambda nnx: True,
    "False": lambda nnx: False,
    "None": lambda nnx: None,
    "tuple": lambda nnx: (nnx.Param, "head"),
    "list": lambda nnx: [nnx.BatchStat],
    "function": lambda nnx: lambda path, value: "b" in path,
    "Not": lambda nnx: nnx.Not(nnx.Param),
    "All": lambda nnx: nnx.All(nnx.Param, "head"),
    "Any": lambda nnx: nnx.Any(nnx.BatchStat, nnx.PathContains("c")),
    "PathContains": lambda nnx: nnx.PathContains("b"),
    "PathContains int": lambda nnx: nnx.PathContains(0),
    "PathContains inexact": lambda nnx: nnx.PathContains("lay", exact=False),
    "PathIn": lambda nnx: nnx.filterlib.PathIn(("a",), ("b", "c")),
    "WithTag": lambda nnx: nnx.WithTag("head"),
    "OfType": lambda nnx: nnx.OfType(nnx.BatchStat),
    "Everything": lambda nnx: nnx.Everything(),
    "Nothing": lambda nnx: nnx.Nothing(),
    "wrong order": lambda nnx: ...,
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_select_the_same(same, name):
    same(lambda nnx: nnx.filter_state(make(nnx), FILTERS[name](nnx)))
    same(lambda nnx: nnx.split_state(make(nnx), FILTERS[name](nnx), ...))
    same(lambda nnx: nnx.split_state(make(nnx), FILTERS[name](nnx)))
    same(lambda nnx: nnx.filter_state(make(nnx), FILTERS[name](nnx), nnx.Param))


def test_predicates_compare_and_show():
    assert filterlib.to_predicate((nnx.Param, "x")) == filterlib.to_predicate([nnx.Param, "x"])
    assert hash(nnx.All(nnx.Param)) == hash(nnx.All(nnx.Param))
    assert nnx.Everything() != nnx.Nothing()
    assert repr(nnx.Not(nnx.Any(nnx.Param, "x"))) == "Not(Any(OfType(Param), WithTag('x')))"


def test_not_a_filter():
    with pytest.raises(TypeError, match="Not a filter: 3 of type int"):
        filterlib.to_predicate(3)
