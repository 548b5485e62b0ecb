"""What the bytecode of functions says about them."""

import jax.numpy as jnp
import pytest

from sonde.core.session.code_reads import is_of_library, values_read, what_it_does

SCALE, TABLE = 2.0, {}


def reads_a_global(h):
    return jnp.sin(h) * SCALE


def of_an_inner_function(h):
    return (lambda x: x.real * SCALE)(h)


def logs(h):
    TABLE["h"] = h
    return h


def counts(n):
    def f(h):
        nonlocal n
        n += 1
        return h

    return f


def counts_itself(h):
    n = 0

    def add():
        nonlocal n
        n += 1

    add()
    return h * n


def test_names_that_functions_read():
    assert set(what_it_does(reads_a_global.__code__).globals) == {"jnp", "SCALE"}
    assert what_it_does(reads_a_global.__code__).attributes == ("sin",)
    assert what_it_does(of_an_inner_function.__code__).globals == ("SCALE",)
    assert what_it_does(of_an_inner_function.__code__).attributes == ("real",)
    assert dict(values_read(reads_a_global)) == {"jnp": jnp, "SCALE": 2.0}
    assert values_read(lambda h, a=1, *, b=2: h) == [("", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("function", "writes"),
    [(reads_a_global, False), (logs, True), (lambda h: TABLE.setdefault("h", h), True), (of_an_inner_function, False)],
)
def test_functions_that_change_what_they_read(function, writes):
    assert what_it_does(function.__code__).writes == writes


def test_variables_that_functions_assign():
    assert what_it_does(counts(0).__code__).assigned == {"n"}
    assert not what_it_does(counts_itself.__code__).assigned


@pytest.mark.parametrize(
    ("function", "asks"),
    [
        (lambda h, s=1.0: h if isinstance(s, float) else -h, True),
        (lambda h, s=1.0: h * len(f"{s}"), True),
        (reads_a_global, False),
    ],
)
def test_functions_that_tell_numbers_apart(function, asks):
    assert what_it_does(function.__code__).asks == asks


def test_functions_of_libraries():
    assert is_of_library(jnp.linspace) and not is_of_library(logs)
