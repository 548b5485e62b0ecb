import collections

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx.structure.definitions import count_leaves, flatten_once, has_references, unflatten_once
from sonde.nnx.structure.walk import walk

Pair = collections.namedtuple("Pair", "y x")


@pytest.mark.parametrize("value", [[1, 2], (1, 2), {"b": 1, "a": 2}, Pair(1, 2), nnx.State({"a": 1})], ids=repr)
def test_containers_one_step_down_and_back(value):
    keys, children, rebuild = flatten_once(value)
    made = unflatten_once(type(value), keys, rebuild, children)
    assert type(made) is type(value) and made == value
    assert list(made) == list(value)  # dicts keep their order


class Keyed(list):
    """A pytree whose children have keys that it chooses."""


jax.tree_util.register_pytree_with_keys(
    Keyed,
    lambda value: ([(jax.tree_util.DictKey(key), child) for key, child in value], tuple(key for key, _ in value)),
    lambda keys, children: Keyed(zip(keys, children)),
)


@pytest.mark.parametrize("keys", [("z", "a"), ("b", "b"), (2, 10), (3, "a", 1)], ids=repr)
def test_children_are_ordered_by_their_keys_and_come_back_in_their_places(keys):
    value = Keyed((key, i) for i, key in enumerate(keys))
    names, children, rebuild = flatten_once(value)
    assert sorted(zip(map(str, names), children)) == sorted((str(key), i) for key, i in value)
    assert list(names) == sorted(names, key=lambda k: (isinstance(k, str), k))
    assert unflatten_once(Keyed, names, rebuild, children) == value


@pytest.mark.parametrize("make", [Pair, lambda a, b: Keyed([("z", a), ("b", b)])], ids=["named tuple", "keys"])
def test_what_is_shared_has_the_path_that_it_has_in_flax(make):
    found = []
    for where in (nnx, fnnx):
        shared = where.Linear(1, 1, rngs=where.Rngs(0))
        graphdef, state = where.split(make(shared, [shared]))
        again = where.merge(graphdef, state)
        first, second = again if isinstance(again, Pair) else (child for _, child in again)
        assert first is second[0]
        found.append([path for path, _ in where.to_flat_state(state)])
    assert found[0] == found[1]


def test_counting():
    w = nnx.Param(jnp.ones(2))
    definition = walk(nnx.Dict(a=w, b=w, c=nnx.Param(1.0)), graph=True, verb="test").definition
    assert count_leaves(definition) == 2 and has_references(definition)
    assert not has_references(walk(nnx.Dict(a=w), graph=True, verb="test").definition)
