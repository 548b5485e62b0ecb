"""What an `inside=` argument means: objects that stand for several functions, or hide one."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import pytest

import sonde

X = jnp.linspace(0.1, 1.0, 4)


@functools.singledispatch
def chosen(x):
    y = x + 1
    return y


@chosen.register(tuple)
def of_a_tuple(x):
    y = x[0] * 2
    return y


class Methods:
    def __init__(self, size):
        self._size = size

    @property
    def size(self):
        got = self._size * 1
        return got

    @size.setter
    def size(self, value):
        new = value * 2
        self._size = new

    def scaled(self, by, x):
        y = x * by
        return y

    tripled = functools.partialmethod(scaled, 3)

    @functools.singledispatchmethod
    def method(self, x):
        y = x
        return y

    @method.register(tuple)
    def _(self, x):
        z = x[0]
        return z


def sets(x):
    methods = Methods(x)
    methods.size = x
    return methods.size


@pytest.mark.parametrize(
    ("run", "inside", "path"),
    [
        (lambda x: chosen((x,)), chosen, "of_a_tuple/y"),
        (lambda x: chosen(x), chosen, "chosen/y"),
        (sets, Methods.size, "Methods.size/new"),
        (sets, Methods.size, "Methods.size/got"),
        (lambda x: Methods(x).tripled(x), Methods.tripled, "Methods.scaled/y"),
        (lambda x: Methods(x).tripled(x), vars(Methods)["tripled"], "Methods.scaled/y"),
        (lambda x: Methods(x).method((x,)), vars(Methods)["method"], "Methods._/z"),
    ],
)
def test_objects_that_stand_for_functions(run, inside, path):
    assert path in sonde.capture(run, inside=inside)(X)[1]
