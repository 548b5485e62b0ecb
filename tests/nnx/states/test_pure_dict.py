"""States as plain nested dicts, as Flax makes and takes them."""

import jax
import jax.numpy as jnp
import pytest
from tests.nnx.graphs import tree
from tests.nnx.nested_state import make

from sonde import nnx


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
    from flax import nnx as flax

    ours, theirs = tree(nnx), tree(flax)
    state = flax.state(theirs)
    flax.replace_by_pure_dict(state, jax.tree.map(lambda x: x + 1, nnx.to_pure_dict(nnx.state(ours))))
    back = nnx.state(ours)
    nnx.replace_by_pure_dict(back, flax.to_pure_dict(state))
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
