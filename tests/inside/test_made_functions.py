"""Functions that are made while a capture runs, by functions that are not looked into."""

from __future__ import annotations

import sys
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde.inside import code_swap as swapping

X = jnp.linspace(0.1, 1.0, 4)


def scanned(x):
    def body(carry, _):
        h = jnp.sin(carry)
        return h, None

    return jax.lax.scan(body, x, length=3)[0]


def make():
    def inner(x):
        def innermost(v):
            w = v * 2
            return w

        return innermost(x)

    return inner


def classes(x):
    class Local:
        def method(self, v):
            w = v + 1
            return w

    return Local().method(x)


def lambdas(x):
    return (lambda v: (lambda w: w + v)(v))(x)


def generated(x):
    """Has a docstring."""

    def body(v):
        w = v * 3
        return w

    yield body(x)


def names(f, inside, x=X):
    return list(sonde.capture(f, inside=inside)(x)[1])


def test_the_body_of_a_loop_by_name():
    assert names(scanned, f"{__name__}:scanned.body") == [f"scanned.body/{n}" for n in ("carry", "h", "return")]
    assert names(jax.jit(scanned), f"{__file__}:scanned.body")[1] == "scanned.body/h"
    _, records = sonde.capture(scanned, "**/h", inside=f"{__name__}:scanned.body")(X)
    np.testing.assert_allclose(records["scanned.body/h"].value[1], jnp.sin(jnp.sin(X)), rtol=1e-6)


def test_a_function_object_stands_for_those_that_are_made_later():
    assert names(lambda x: make()(x), make())[0] == "make.inner/x"
    inside = f"{__name__}:make.inner.innermost"
    assert names(lambda x: make()(x), inside) == [f"make.inner.innermost/{n}" for n in ("v", "w", "return")]


def test_methods_of_a_class_that_is_made_in_a_function():
    assert names(classes, f"{__name__}:classes.Local.method") == [
        f"classes.Local.method/{n}" for n in ("v", "w", "return")
    ]


def test_lambdas_in_lambdas():
    outer = [path for path in names(lambdas, lambdas) if path.endswith("return")]
    assert outer == ["lambdas/lambda/lambda/return", "lambdas/lambda/return", "lambdas/return"]


def test_functions_that_a_generator_makes():
    assert names(lambda x: next(generated(x)), f"{__name__}:generated.body")[1] == "generated.body/w"
    assert names(lambda x: next(generated(x)), __name__)[2].endswith("generated.body/w")


@pytest.mark.parametrize("inside", ["scanned.body", "make.inner", "classes.Local.method", "generated.body"])
def test_nothing_is_left_behind(inside):
    before = {f: f.__code__ for f in (scanned, make, classes, lambdas, generated)}
    kept = []

    def run(x):
        kept.append(make())
        return scanned(x) + classes(x) + lambdas(x) + next(generated(x)) + kept[-1](x)

    assert names(run, f"{__name__}:{inside}")
    assert all(f.__code__ is code for f, code in before.items())
    assert kept[0].__code__ == make().__code__


def test_functions_that_another_thread_makes_meanwhile():
    made = []

    def run(x):
        thread = threading.Thread(target=lambda: made.extend([make(), *(f for f in generates_functions())]))
        thread.start()
        thread.join()
        return x

    sonde.capture(run, inside=[f"{__name__}:make.inner", f"{__name__}:generates_functions.body"])(X)
    assert made[0].__code__ == make().__code__
    assert made[1].__code__ == next(generates_functions()).__code__


def generates_functions():
    def body(v):
        w = v
        return w

    yield body


def copied(x):
    y = x * 2
    return types.FunctionType(copied.__code__, globals()), y


def test_a_function_that_was_made_of_marked_code():
    copy = sonde.capture(copied, inside=copied)(X)[0][0]
    assert list(sonde.capture(copy, inside=copy)(X)[1]) == ["copied/x", "copied/y", "copied/return"]


def test_what_marked_code_is_made_of_is_not_marked_again():
    found = []

    def f(x):
        return (lambda v: v + note(v))(x)  # marked, it has a lambda with the same code in it

    def note(v):
        functions = [(g.__code__.co_qualname, marks) for g, marks in swapping.functions_of({__file__})]
        found.extend(marks for name, marks in functions if name.endswith(".f.<locals>.<lambda>.<locals>.<lambda>"))
        return v

    sonde.capture(f, inside=f)(X)
    assert found == [None]


def test_functions_are_found_while_another_thread_makes_tuples():
    """Python lists them before they are finished, and cannot finish one that something refers to."""
    errors, interval, done = [], sys.getswitchinterval(), threading.Event()

    def make_tuples():
        while not done.is_set():
            try:
                tuple(map(lambda i: [i], range(30)))  # noqa: C417
            except SystemError as error:
                errors.append(error)

    thread = threading.Thread(target=make_tuples)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            swapping.functions_of({__file__})
    finally:
        done.set()
        thread.join(60)
        sys.setswitchinterval(interval)
    assert not errors
