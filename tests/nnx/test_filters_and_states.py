import jax
import jax.numpy as jnp
import pytest

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


def make(nnx):
    return nnx.State(
        {
            "a": nnx.Param(jnp.ones(2), tag="head"),
            "b": {"c": nnx.BatchStat(jnp.zeros(1)), "d": nnx.Param(3)},
            "layers": {0: {"w": nnx.Param(1.0)}, 1: {"w": nnx.Cache(2.0)}, 10: jnp.ones(1)},
        }
    )


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


def test_a_remainder_is_named():
    with pytest.raises(ValueError, match=r"3 leaves are matched by no filter: b/c \(BatchStat\)"):
        nnx.split_state(make(nnx), nnx.Param)
    with pytest.raises(ValueError, match="filter 0 of 2 is Ellipsis, which takes everything"):
        nnx.split_state(make(nnx), ..., nnx.Param)


def test_access(same):
    def use(nnx):
        s = make(nnx)
        s["b"]["new"] = nnx.Param(5)
        s.e = 1
        s["f"] = nnx.State({"g": 2})
        s["h"] = {"i": 3}
        del s["a"]
        inner = isinstance(s.b, nnx.State), isinstance(s["h"], nnx.State), type(s.raw_mapping["b"])
        return s, list(s), len(s), "b" in s, inner, s.f.g

    same(use)
    same(lambda nnx: make(nnx).nope)
    same(lambda nnx: make(nnx)["nope"])
    same(lambda nnx: hash(make(nnx)))


def test_missing_name_lists_what_there_is():
    with pytest.raises(AttributeError, match=r"No attribute 'nope' in State; it has \['a', 'b', 'layers'\]"):
        _ = make(nnx).nope


def test_pytree(same):
    def use(nnx):
        s = make(nnx)
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(s)]
        return paths, jax.tree.map(lambda x: x * 2, s), jax.tree.leaves(nnx.to_flat_state(s))

    same(use)


def test_merging(same):
    same(lambda nnx: nnx.merge_state(make(nnx), nnx.State({"b": {"z": 1}, "a": 0})))
    same(lambda nnx: nnx.merge_state({"a": 1}, {"b": {"c": 2}}, cls=dict))
    same(lambda nnx: nnx.State({"a": 1}) | nnx.State({"a": 2, "b": 3}))
    same(lambda nnx: nnx.State({"a": 1, "b": {"c": 2, "d": 3}}) - nnx.State({"b": {"c": 0}}))


def test_merging_a_leaf_with_a_node_is_an_error():
    with pytest.raises(ValueError, match="a/b is a leaf in one"):
        nnx.merge_state(nnx.State({"a": {"b": 1}}), nnx.State({"a": {"b": {"c": 2}}}))


def test_flat_states(same):
    same(lambda nnx: nnx.to_flat_state(make(nnx)))
    same(lambda nnx: nnx.to_flat_state(make(nnx)).paths)
    same(lambda nnx: nnx.from_flat_state(nnx.to_flat_state(make(nnx))))
    same(lambda nnx: nnx.from_flat_state({("a", "b"): 1, ("c",): 2}))
    same(lambda nnx: nnx.from_flat_state([(("a", "b"), 1)], cls=dict))
    same(lambda nnx: nnx.FlatState([(("b",), 1), (("a",), 2)], sort=True))

    def use(nnx):
        f = nnx.FlatState([(("b",), 1), (("a",), 2)], sort=True)
        return f[0], f[0:1], len(f), list(f), f.leaves, f.to_nested_state(), f.split(...), f.filter(lambda p, v: v == 1)

    same(use)


def test_mapping(same):
    same(lambda nnx: nnx.map_state(lambda path, leaf: path, make(nnx)))


def test_pure_dicts(same):
    same(lambda nnx: nnx.to_pure_dict(make(nnx)))
    same(lambda nnx: nnx.to_pure_dict(make(nnx), lambda leaf: "x"))
    same(lambda nnx: nnx.restore_int_paths({"a": {"0": 1, "x": {"10": 2}}}))

    def replace(pure):
        def use(nnx):
            s = make(nnx)
            nnx.replace_by_pure_dict(s, pure)
            return s

        return use

    same(replace({"a": jnp.zeros(2), "layers": {0: {"w": 5.0}}}))
    same(replace({"layers": {"0": {"w": 5.0}}}))
    same(replace({"zz": 1}))


def test_pure_dict_with_an_unknown_key_changes_nothing():
    s = make(nnx)
    with pytest.raises(ValueError, match=r"the state has no leaf at zz, which pure_dict has"):
        nnx.replace_by_pure_dict(s, {"a": jnp.zeros(2), "zz": 1})
    assert s["a"].sum() == 2


def test_traversals(same):
    same(lambda nnx: nnx.traversals.flatten_mapping({"a": {"b": 1}, "c": {}}))
    same(lambda nnx: nnx.traversals.flatten_mapping({"a": {"b": 1}}, sep="/"))
    same(lambda nnx: nnx.traversals.unflatten_mapping({("a", "b"): 1}))
    same(lambda nnx: nnx.traversals.unflatten_mapping({"a/b": 1}, sep="/"))
    same(lambda nnx: nnx.traversals.flatten_to_sequence({"b": {"x": 1}, "a": 2}))
    same(lambda nnx: list(nnx.traversals.flatten_mapping({"a": {}}, keep_empty_nodes=True)))


def test_integers_sort_before_strings():
    s = nnx.State({"b": nnx.Param(1), 3: nnx.Param(2), 11: nnx.Param(3)})
    assert nnx.to_flat_state(s).paths == ((3,), (11,), ("b",))
    assert jax.tree.leaves(s) == [2, 3, 1]
