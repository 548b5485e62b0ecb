import jax
import jax.numpy as jnp
import pytest
from tests.nnx.graphs import tree
from tests.nnx.nested_state import make

from flax import nnx as flax_nnx
from sonde import nnx


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


def test_integers_sort_before_strings():
    s = nnx.State({"b": nnx.Param(1), 3: nnx.Param(2), 11: nnx.Param(3)})
    assert nnx.to_flat_state(s).paths == ((3,), (11,), ("b",))
    assert jax.tree.leaves(s) == [2, 3, 1]


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


def test_paths_and_keys_move_to_flax_and_back(same):
    """A state of one implementation, as a pure dict, fits the other."""
    ours, theirs = tree(nnx), tree(flax_nnx)
    state = flax_nnx.state(theirs)
    flax_nnx.replace_by_pure_dict(state, jax.tree.map(lambda x: x + 1, nnx.to_pure_dict(nnx.state(ours))))
    back = nnx.state(ours)
    nnx.replace_by_pure_dict(back, flax_nnx.to_pure_dict(state))
    nnx.update(ours, back)
    assert ours.w.tolist() == [2, 2] and ours.layers[2].w.get_value() == 3.0


def test_values_are_what_the_variables_hold_past_which_one_may_go():
    state = nnx.State({"w": nnx.Param(2.0, on_get_value=lambda v, x: x * 10), "bare": 3})
    assert nnx.to_pure_dict(state) == {"w": 20.0, "bare": 3}
    assert nnx.to_pure_dict(state, lambda leaf: type(leaf).__name__) == {"w": "Param", "bare": "int"}


def test_replacing_keeps_variables_of_their_type_and_makes_new_ones():
    state = nnx.State({"w": nnx.Param(2.0, mine=1), "bare": 3})
    before = state["w"]
    nnx.replace_by_pure_dict(state, {"w": 5.0, "bare": 4})
    assert (type(state["w"]), state["w"].mine, state["w"].get_value(), state["bare"]) == (nnx.Param, 1, 5.0, 4)
    assert before.get_value() == 2.0
    nnx.replace_by_pure_dict(state, {"w": 5.0}, lambda leaf, value: (leaf.get_value(), value))
    assert state["w"] == (5.0, 5.0)
