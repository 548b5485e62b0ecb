"""The arrays of functions, and functions made again with other arrays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde.core.edits.hoisting import hoist

A, B = jnp.arange(3.0), jnp.arange(3.0) * 10


def closing_over(array, number=2, scale=0.5):
    table = {"first": [array], "second": (array * 2, number)}
    return lambda h: h * table["second"][0] + table["first"][0] * scale + number


def with_default(array):
    def f(h, d=array, *, more=array):
        return h + d - more * 3

    return f


class Holder:
    def __init__(self, array):
        self.array = array

    def __call__(self, h):
        return h * self.array


jax.tree_util.register_pytree_node(Holder, lambda holder: ((holder.array,), None), lambda _, arrays: Holder(*arrays))


class Opaque:
    def __init__(self, array):
        self.array = array

    def __call__(self, h):
        return h * self.array


MAKERS = {
    "closure": closing_over,
    "defaults": with_default,
    "partial": lambda array: functools.partial(lambda h, a, b: h * a - b, a=array, b=array + 1),
    "nested functions": lambda array: (lambda inner: lambda h: inner(h) + 1)(closing_over(array)),
    "pytree": Holder,
    "method of a pytree": lambda array: Holder(array).__call__,
}


@pytest.mark.parametrize("name", MAKERS)
def test_one_key_and_other_arrays(name):
    make = MAKERS[name]
    first, arrays = hoist(make(A))
    second, others = hoist(make(B))
    assert arrays and first.key == second.key and hash(first.key) == hash(second.key)
    x = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(first.rebuild(others)(x), make(B)(x))
    np.testing.assert_array_equal(first.rebuild(arrays)(x), make(A)(x))


def test_what_differs_otherwise_has_another_key():
    assert hoist(closing_over(A, 2))[0].key != hoist(closing_over(A, 3))[0].key  # an integer may be an index
    assert hoist(closing_over(A, 2, 0.5))[0].key == hoist(closing_over(A, 2, 0.7))[0].key
    assert hoist(closing_over(A))[0].key != hoist(closing_over(A[:2]))[0].key
    assert hoist(lambda h: h + A)[0].key != hoist(lambda h: h - A)[0].key
    opaque = Opaque(A)
    assert hoist(opaque)[0].key == hoist(opaque)[0].key
    assert hoist(opaque)[0].key != hoist(Opaque(A))[0].key


def test_a_global_that_changed_gives_another_key():
    def of(value):
        names = {"value": value}
        exec("def f(h):\n    return h * value", names)
        return names["f"]

    first, second = of(2), of(3)
    second = type(first)(first.__code__, second.__globals__)
    assert hoist(first)[0].key != hoist(second)[0].key


def test_a_function_that_calls_itself():
    def count(h, n=A):
        return h if h.sum() > 0 else count(h + n)

    hoisted, arrays = hoist(count)
    assert len(arrays) == 1
    np.testing.assert_array_equal(hoisted.rebuild([B])(jnp.zeros(3)), B)


def test_traced_arrays_and_arrays_of_numpy():
    assert len(hoist(closing_over(np.arange(3.0)))[1]) == 3
    assert not hoist(lambda h, i=np.arange(3): h[i])[1]
    keys = []

    @jax.jit
    def run(array):
        hoisted, arrays = hoist(closing_over(array))
        keys.append(hoisted.key)
        return hoisted.rebuild(arrays)(array)

    np.testing.assert_allclose(run(A), closing_over(A)(A))
    assert keys[0] == hoist(closing_over(A))[0].key
