"""One value per leaf, from prefixes of every form, against what JAX makes of the same prefix."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from sonde import nnx
from sonde.nnx.transforms.leaf_values import alternatives, each_leaf, leaf_values, numbering, same_form
from sonde.nnx.transforms.lifting import walk_call


def found_in(*args):
    names = tuple(f"args[{i}]" for i in range(len(args)))
    return walk_call(names, args, verb="vmap", graph=True)


def values(prefix, *args):
    found = found_in(*args)
    by_leaf = leaf_values(prefix, found.definition, found.leaves, verb="vmap", what="in_axes")
    return dict(zip(map(tuple, found.paths), by_leaf))


A, B = jnp.ones(2), jnp.zeros(3)


@pytest.mark.parametrize(
    ("prefix", "args"),
    [
        (0, (A, {"x": B, "y": [A, B]})),
        ((0, 1), (A, {"x": B, "y": [A, B]})),
        ((0, {"x": 1, "y": 2}), (A, {"x": B, "y": [A, B]})),
        ((0, {"x": 1, "y": [2, 3]}), (A, {"x": B, "y": [A, B]})),
        (((1, 2),), ((A, B),)),
        (((), 1), ((), A)),
    ],
    ids=["one", "per argument", "in a dict", "to the leaves", "a tuple", "an empty one"],
)
def test_prefixes_of_containers_as_jax_spreads_them(prefix, args):
    expected = jax.tree.leaves(jax.tree.broadcast(prefix, args, is_leaf=lambda x: x is None))
    assert list(values(prefix, *args).values()) == expected


def test_filters_look_below_the_object():
    model = nnx.Dict(w=nnx.Param(A), inner=nnx.Dict(mean=nnx.BatchStat(B), v=nnx.Param(A)))
    axes = nnx.StateAxes({nnx.PathContains("inner"): None, nnx.Param: 0, ...: 1})
    by_path = values((axes, 7), {"m": model}, A)
    shown = {path[1:]: value for path, value in by_path.items()}
    assert shown == {("m", "inner", "mean"): None, ("m", "inner", "v"): None, ("m", "w"): 0, (): 7}


def test_what_prefix_made():
    model = nnx.Dict(w=nnx.Param(A), mean=nnx.BatchStat(B))
    made = nnx.prefix(model, {nnx.Param: 0, ...: None})
    assert [values((made,), model)["args[0]", name] for name in ("w", "mean")] == [0, None]


def test_a_spec_is_one_value_and_no_tuple():
    assert set(values((P("a", None),), [A, B]).values()) == {P("a", None)}


def test_a_prefix_that_does_not_fit_says_where():
    with pytest.raises(ValueError, match=r"The in_axes of nnx.vmap, .* do not fit at args\[0\]: there are 2 entries"):
        values(({"x": 0},), {"x": A, "y": B})
    with pytest.raises(ValueError, match="do not fit: there are 1 entries"):
        values((0, 1), A)


def test_a_shared_variable_has_one_value():
    w = nnx.Param(A)
    assert values((0, 0), w, {"w": w}) == {("args[0]",): 0}
    with pytest.raises(ValueError, match=r"Inconsistent aliasing.*\n.*\n.*args\[0\]: 0\n.*args\[1\]/w: 1"):
        values((0, 1), w, {"w": w})


def test_places_come_once_for_each_path_of_a_shared_leaf():
    w = nnx.Param(A)
    found = found_in(nnx.Dict(a=w, b=w), B)
    met = [(path[1:], number) for path, _, _, number in each_leaf(found.definition)]
    assert met == [(("a",), 0), (("b",), 0), ((), 1)]
    assert sorted(first for _, first in numbering(found.definition).values()) == [0, 0]  # the Dict, and w in it


def test_the_values_that_occur_each_once():
    axes = nnx.StateAxes({nnx.Param: 0, ...: None})
    assert alternatives((axes, {"x": 2, "y": 0}, [None])) == [0, None, 2]
    assert alternatives([1, True, 1.0]) == [1, True, 1.0]  # equal, and not the same


def differing(before, after, **options):
    walks = [walk_call(("v",), (value,), verb="f", graph=True) for value in (before, after)]
    return same_form(*(walked.definition for walked in walks), "v", **options)


def test_how_two_forms_differ():
    w = nnx.Param(A)
    assert differing({"a": w, "b": 1}, {"b": 1, "a": nnx.Param(B)}) is None  # order and values do not count
    assert differing([A], (A,)) == "v was a list and is a tuple"
    assert differing({"a": None}, {"a": A}) == "v/a was None and is an array"
    assert differing({"a": w}, {"a": nnx.BatchStat(A)}) == "v/a was a Param and is a BatchStat"
    assert differing({"a": A}, {"b": A}) == "v had the entries a and has b"
    assert differing([w, nnx.Param(A)], [w, w]) == "v/1 is newly shared, or no longer shared"
    dense = nnx.Dict(w=w, n=1)
    assert differing(dense, nnx.Dict(w=w, n=2)) == "the static attributes n of v changed"
    assert differing(dense, nnx.Dict(w=w, n=2), static=False) is None
