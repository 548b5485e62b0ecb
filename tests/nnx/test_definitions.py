import collections

import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx.definitions import count_leaves, flatten_once, has_references, show_path, unflatten_once
from sonde.nnx.walking import walk

Pair = collections.namedtuple("Pair", "y x")


@pytest.mark.parametrize("value", [[1, 2], (1, 2), {"b": 1, "a": 2}, Pair(1, 2), nnx.State({"a": 1})], ids=repr)
def test_containers_one_step_down_and_back(value):
    keys, children, rebuild = flatten_once(value)
    made = unflatten_once(type(value), keys, rebuild, children)
    assert type(made) is type(value) and made == value
    assert list(made) == list(value)  # dicts keep their order


def test_counting():
    w = nnx.Param(jnp.ones(2))
    definition = walk(nnx.Dict(a=w, b=w, c=nnx.Param(1.0)), graph=True, verb="test").definition
    assert count_leaves(definition) == 2 and has_references(definition)
    assert not has_references(walk(nnx.Dict(a=w), graph=True, verb="test").definition)


def test_paths_in_messages():
    assert show_path(("a", 0, "w")) == "a/0/w" and show_path(()) == "(the root)"
