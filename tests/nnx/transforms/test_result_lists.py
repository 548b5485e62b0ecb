"""Results that leave a pure function in one list for every axis or spec."""

import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx.structure.walk import walk
from sonde.nnx.transforms.lifting import take
from sonde.nnx.transforms.options import Mode
from sonde.nnx.transforms.result_lists import Lists, with_keywords

X = jnp.ones(2)


def lists_of(args, in_axes, out_axes, kwargs=None):
    taken = take("vmap", Mode(True, True), args, kwargs or {})
    lists = Lists("vmap", taken.structure, taken.leaves, arguments=("in_axes", in_axes), output=("out_axes", out_axes))
    return taken, lists


def test_a_list_for_every_axis_that_occurs():
    model = nnx.Dict(w=nnx.Param(X), mean=nnx.BatchStat(X))
    _, lists = lists_of((model, X), (nnx.StateAxes({nnx.Param: 1, ...: None}), 0), 2)
    assert lists.in_values == [None, 1, 0]  # mean, w, the array
    assert sorted(lists.kinds, key=str) == [0, 1, 2, None]
    assert lists.n_lists == 4
    for i, value in enumerate(lists.in_values):
        assert lists.kinds[lists.of_change(i)] == value  # a Variable comes back as it went in


def output(lists, value):
    """Where the leaves of an output go."""
    from sonde.nnx.structure.definitions import NamedValues

    found = walk(NamedValues(("out",), (value,)), graph=True, verb="vmap", numbers=True)
    return [lists.kinds[i] for i in lists.of_output(found)]


def test_where_the_output_goes():
    _, lists = lists_of((X,), 0, ({"a": 1, "b": 2}, None))
    assert output(lists, ({"a": X, "b": [X, X]}, X)) == [1, 2, 2, None]
    with pytest.raises(ValueError, match="The out_axes of nnx.vmap"):
        output(lists, (X,))


def test_keyword_arguments_have_the_default():
    taken, _ = lists_of((X, X), 0, 0, {"k": X})
    assert with_keywords(taken.structure, (0, 1), None) == (0, 1, None)
    assert with_keywords(taken.structure, 0, None) == (0, 0, None)
    taken, _ = lists_of((X, X), 0, 0)
    assert with_keywords(taken.structure, 0, None) == 0
