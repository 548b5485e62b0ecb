"""Values that are made again, with other arrays, are what they were."""

import jax.numpy as jnp
import numpy as np
import pytest

from sonde.core.session.closures import Search
from sonde.core.session.remaking import can_be_filled

A, B = jnp.arange(3.0), jnp.arange(3.0) * 10


class Model:
    def __init__(self, array):
        self.array, self.layers, self.name = array, [array * 2], "model"


class WithSlots:
    __slots__ = ("array",)


def with_itself(array):
    model = Model(array)
    model.layers.append(model)
    return model


def again(value, arrays):
    search = Search()
    _, remake = search.part(value)
    assert remake is not None and len(arrays) == len(search.arrays)
    return remake(arrays, {})


def test_an_object_is_copied_with_what_is_in_it():
    model = Model(A)
    copy = again(model, [B, B * 2])
    assert type(copy) is Model and copy.name is model.name
    np.testing.assert_array_equal(copy.array, B)
    np.testing.assert_array_equal(copy.layers[0], B * 2)
    np.testing.assert_array_equal(model.array, A)


def test_an_object_that_has_itself_in_it():
    copy = again(with_itself(A), [B, B * 2])
    assert copy.layers[1] is copy


def test_what_is_in_a_value_twice_is_made_once():
    shared = [A]
    one, other = again((shared, {"again": shared}), [B])
    assert other["again"] is one


def test_a_function_keeps_its_name_defaults_and_attributes():
    def f(h, scale=2, *, offset=A):
        return h * scale + offset

    f.word = "kept"
    copy = again(f, [B])
    assert (copy.__name__, copy.word, copy.__defaults__) == ("f", "kept", (2,))
    np.testing.assert_array_equal(copy(A), A * 2 + B)


def test_a_global_is_replaced_for_the_function_alone():
    names = {"array": A}
    exec("def f(h):\n    return h + array", names)
    np.testing.assert_array_equal(again(names["f"], [B])(A), A + B)
    assert names["array"] is A


@pytest.mark.parametrize(
    ("value", "expected"), [([], True), ({}, True), (Model(A), True), (WithSlots(), False), ((), False), (set(), False)]
)
def test_which_values_can_be_made_before_their_parts(value, expected):
    assert can_be_filled(value) == expected
