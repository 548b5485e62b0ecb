"""Values that are not sites as they are, or that cannot be rebuilt."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from flax import struct

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
    # It cannot be made of its fields, so its record is a dict of them.
    np.testing.assert_array_equal(records["named_tuples/doubled"].value["double"], X * 2)
    np.testing.assert_array_equal(records["named_tuples/made"].value.value, X)
    np.testing.assert_array_equal(records["named_tuples/pair"].value.value, X + 1)


@struct.dataclass
class Moments:
    mean: jax.Array
    inner: object
    name: str = struct.field(pytree_node=False, default="m")


@jax.tree_util.register_pytree_node_class
class Pair:
    def __init__(self, left, right):
        self.left, self.right = left, right

    def tree_flatten(self):
        return (self.left, self.right), None

    @classmethod
    def tree_unflatten(cls, _, children):
        raise AssertionError("a record is not made by the program's class")


class Sums:
    def add(self, x):
        self.total = x.sum() * jnp.ones(2)
        self.state = Moments(x.mean(), Pair(x, {"k": x * 2}))
        layers = [len, Pair]  # no arrays
        return self.total + self.state.mean, layers[0]


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: lambda x: jax.lax.map(lambda x: f(x)[0], jnp.stack([x, x]))])
def test_objects_that_jax_knows_and_attributes(wrap):
    _, records = sonde.capture(wrap(Sums().add), inside=Sums, grads=True)(X)
    assert list(records) == ["Sums.add/x", "Sums.add/self.total", "Sums.add/self.state", "Sums.add/return"]
    state = records["Sums.add/self.state"].value
    np.testing.assert_allclose(state["inner"]["1"]["k"], np.broadcast_to(X * 2, state["inner"]["0"].shape))
    edited = sonde.edit(lambda x: Sums().add(x)[0], {"Sums.add/self.total": jnp.zeros(2)}, inside=Sums)(X)
    np.testing.assert_allclose(edited, X.mean() * np.ones(2))
    with pytest.raises(sonde.errors.EditError, match=r"self\.state"):
        sonde.edit(Sums().add, {"Sums.add/self.state": lambda s: s}, inside=Sums)(X)
