"""Values that are not sites as they are, or that cannot be rebuilt."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde

X = jnp.linspace(0.1, 1.0, 4)


class Doubled(collections.namedtuple("Doubled", "value double")):
    """A named tuple that is not made of its fields, so JAX cannot make it."""

    __slots__ = ()

    def __new__(cls, value):
        return super().__new__(cls, value, value * 2)


class Noted(collections.namedtuple("Noted", "value other")):
    """A named tuple with attributes."""


def named_tuples(x):
    doubled = Doubled(x)

    def make():
        noted = Noted(x, [Noted(x, x)])
        noted.note = noted.other[0].note = 3
        return noted

    made = make()
    pair = Noted(x + 1, x)
    return doubled.double + made.value * made.note + made.other[0].note + pair.value


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.grad(lambda x: f(x).sum())])
def test_named_tuples_with_constructors_or_attributes_of_their_own(wrap, grads):
    result, records = sonde.capture(wrap(named_tuples), inside=named_tuples, grads=grads)(X)
    np.testing.assert_array_equal(result, wrap(named_tuples)(X))
    assert "named_tuples/doubled" not in records
    np.testing.assert_array_equal(records["named_tuples/made"].value.value, X)
    np.testing.assert_array_equal(records["named_tuples/pair"].value.value, X + 1)
