"""The arrays of functions, and functions made again with other arrays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde.core.edits.hoisting import NumbersNeeded, calling, hoist, whole

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


class Plain:
    def __init__(self, array):
        self.array = array

    def __call__(self, h):
        return h * self.array


class Opaque(Plain):
    """A copy of it would end with a word."""

    def __del__(self):
        pass


MAKERS = {
    "closure": closing_over,
    "defaults": with_default,
    "partial": lambda array: functools.partial(lambda h, a, b: h * a - b, a=array, b=array + 1),
    "nested functions": lambda array: (lambda inner: lambda h: inner(h) + 1)(closing_over(array)),
    "pytree": Holder,
    "method of a pytree": lambda array: Holder(array).__call__,
    "object": Plain,
    "method of an object": lambda array: Plain(array).__call__,
    "global": lambda array: defined("def f(h):\n    return h * array", array=array),
    "global that another function reads": lambda array: defined(
        "def g(h):\n    return h * array\n\ndef f(h):\n    return g(h) + 1", array=array
    ),
    "cycle": lambda array: in_itself(Plain(array)),
    "recursive function": lambda array: defined(
        "def f(h, n=3):\n    return h if n == 0 else f(h * array, n - 1)", array=array
    ),
}


def defined(source, **names):
    exec(source, names)
    return names["f"]


def in_itself(holder):
    holder.itself = [holder]
    return lambda h: h - holder.itself[0].itself[0](h)


@pytest.mark.parametrize("name", MAKERS)
def test_one_key_and_other_arrays(name):
    make = MAKERS[name]
    hoisted, arrays = hoist(make(A))
    again, others = hoist(make(B))
    assert arrays and hoisted is again
    x = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(hoisted.rebuild(others)(x), make(B)(x))
    np.testing.assert_array_equal(hoisted.rebuild(arrays)(x), make(A)(x))


def test_what_differs_otherwise_has_another_key():
    hoisted = hoist(closing_over(A, 2, 0.5))[0]
    assert hoisted is not hoist(closing_over(A, 3, 0.5))[0]  # an integer may be an index
    assert hoisted is hoist(closing_over(A, 2, 0.7))[0]
    assert hoisted is not hoist(closing_over(A[:2], 2, 0.5))[0]
    added = hoist(lambda h: h + A)[0]
    assert added is not hoist(lambda h: h - A)[0]
    opaque = Opaque(A)
    hoisted = hoist(opaque)[0]
    assert hoisted is hoist(opaque)[0]
    assert hoisted is not hoist(Opaque(A))[0]


def test_a_global_that_changed_gives_another_key():
    def of(value):
        names = {"value": value}
        exec("def f(h):\n    return h * value", names)
        return names["f"]

    first, second = of(2), of(3)
    second = type(first)(first.__code__, second.__globals__)
    hoisted = hoist(first)[0]
    assert hoisted is not hoist(second)[0]


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
        keys.append(hoisted)
        return hoisted.rebuild(arrays)(array)

    np.testing.assert_allclose(run(A), closing_over(A)(A))
    assert keys[0] is hoist(closing_over(A))[0]


def site():
    from tests.core.making import site_of

    return site_of(A)


TELLING = {
    "isinstance": lambda h, s=2.0: h * s if isinstance(s, float) else h,
    "a text": lambda h, s=2.0: h * {"2.0": 5.0}[f"{s}"],
    "in a function that it calls": lambda h, s=2.0: scaled(h, s),
    "partial": functools.partial(lambda h, s: h * s if type(s) is float else h, s=2.0),
    "NumPy": lambda h, s=np.ones(3): h * s if isinstance(s, np.ndarray) else h * 0,
}


def scaled(h, s):
    return h * s if isinstance(s, float) else h


@pytest.mark.parametrize("name", TELLING)
def test_numbers_stay_in_functions_that_ask_what_they_are(name):
    function = TELLING[name]
    hoisted, arrays = hoist(function)
    assert not arrays
    np.testing.assert_array_equal(hoisted.rebuild([])(A), function(A))


def test_an_error_of_a_number_names_the_site():
    hoisted, arrays = hoist(lambda h, s=2.0: h * s if s > 1 else h)

    def traced(h, arrays):
        with calling(hoisted, site(), "the function of an edit"):
            return hoisted.rebuild(arrays)(h)

    with pytest.raises(NumbersNeeded, match="at site 'h' .* needs the number") as caught:
        jax.jit(traced)(A, arrays)
    assert caught.value.function is hoisted
    kept = whole(scaled)
    assert kept is whole(scaled)
    with pytest.raises(jax.errors.TracerBoolConversionError):  # of the value: so it is by hand
        jax.jit(lambda h: calling_whole(lambda h: h if h.sum() > 0 else -h, h))(A)


def calling_whole(function, h):
    with calling(whole(function), site(), "the function of an edit"):
        return whole(function).rebuild([])(h)
