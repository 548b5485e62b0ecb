"""Nested mappings as flat ones and back."""

import pytest

from sonde.nnx.states.traversals import (
    flatten_mapping,
    path_order,
    show_path,
    sort_by_path,
    sorted_keys,
    unflatten_mapping,
)


def test_traversals(same):
    same(lambda nnx: nnx.traversals.flatten_mapping({"a": {"b": 1}, "c": {}}))
    same(lambda nnx: nnx.traversals.flatten_mapping({"a": {"b": 1}}, sep="/"))
    same(lambda nnx: nnx.traversals.unflatten_mapping({("a", "b"): 1}))
    same(lambda nnx: nnx.traversals.unflatten_mapping({"a/b": 1}, sep="/"))
    same(lambda nnx: nnx.traversals.flatten_to_sequence({"b": {"x": 1}, "a": 2}))
    same(lambda nnx: list(nnx.traversals.flatten_mapping({"a": {}}, keep_empty_nodes=True)))


@pytest.mark.parametrize("nested", [{}, {"a": 1}, {"a": {"b": {"c": 1}}, 0: {1: 2}}, {"a": {}, "b": {"c": {}}}])
def test_there_and_back(nested):
    assert unflatten_mapping(flatten_mapping(nested, keep_empty_nodes=True)) == nested


def test_integers_come_before_strings_and_by_value():
    assert sorted_keys(["b", 10, 9, "a"]) == [9, 10, "a", "b"]
    assert sorted_keys(["10", "9"]) == ["10", "9"]
    pairs = [(("a", 10), 1), (("a", "x"), 2), (("a", 9), 3), ((0,), 4)]
    assert [value for _, value in sort_by_path(pairs)] == [4, 3, 1, 2]
    assert path_order(("a",)) < path_order(("a", 0))  # a prefix before what is below


def test_what_is_a_leaf_may_be_said():
    nested = {"a": {"b": 1}, "c": {"d": 2}}
    assert flatten_mapping(nested, is_leaf=lambda path, value: path == ("a",)) == {("a",): {"b": 1}, ("c", "d"): 2}
    with pytest.raises(TypeError, match="Expected a mapping, got list"):
        flatten_mapping([1])


def test_paths_in_messages():
    assert show_path(("a", 0, "w")) == "a/0/w" and show_path(()) == "(the root)"
