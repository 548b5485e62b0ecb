"""A program that is traced again is the one that was kept if it computes the same, and another one if it does not."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde.port.gradients import with_gradient
from sonde.port.rounding import rounded_otherwise
from sonde.programs.traced import Program, inner_constants, kept_program, trace
from sonde.tools import compare

X = jnp.arange(1.0, 4.0)
settings: dict[str, Any] = {}


def program(x: Any) -> Any:
    """Whatever the settings say, as a function that reads globals does."""

    def body(c: Any, w: Any) -> Any:
        return settings["function"](c) * settings["factor"] + w, settings["dot"](c)

    c, outs = jax.lax.scan(body, x, settings["weights"], unroll=settings["unroll"])
    return c + settings["factor"], outs


def dot_of(precision: Any) -> Any:
    return lambda c: jax.lax.dot(c, c, precision=precision)


WEIGHTS = jnp.ones((3, 3))
FIRST = {"function": jnp.sin, "factor": 0.0, "weights": WEIGHTS, "unroll": 1, "dot": dot_of("default")}


def gradient_of(f: Any, *args: Any) -> Program:
    return with_gradient(trace(f, args, {}))


@pytest.fixture(autouse=True)
def first_settings() -> None:
    settings.update(FIRST)


def test_the_same_program_is_the_one_that_was_kept() -> None:
    own = kept_program(program, gradient_of(program, X))
    assert gradient_of(program, X).jaxpr is not own.jaxpr
    assert kept_program(program, gradient_of(program, X)).jaxpr is own.jaxpr
    assert kept_program(program, gradient_of(program, X * 2)).jaxpr is own.jaxpr


def test_one_program_is_kept_for_each_set_of_types() -> None:
    def f(x: Any) -> Any:
        return jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=2)[0]

    inputs = X, X[:2], X.astype(jnp.bfloat16)
    first = [kept_program(f, gradient_of(f, x)).jaxpr for x in inputs]
    again = [kept_program(f, gradient_of(f, x)).jaxpr for x in inputs]
    assert all(a is b for a, b in zip(first, again)) and len({*map(id, first)}) == 3


@pytest.mark.parametrize(
    "other",
    [
        {"function": jnp.cos},
        {"factor": -0.0},
        {"factor": 2.0},
        {"factor": jnp.nan},
        {"weights": jnp.ones((4, 3))},
        {"unroll": 3},
        {"dot": dot_of("highest")},
    ],
    ids=["another function", "-0.0", "2.0", "nan", "weights", "unroll", "another product"],
)
def test_a_program_that_computes_something_else_is_its_own(other: dict[str, Any]) -> None:
    own = kept_program(program, gradient_of(program, X))
    settings.update(other)
    changed = gradient_of(program, X)
    again = kept_program(program, changed)
    assert again.jaxpr is changed.jaxpr is not own.jaxpr
    settings.update(FIRST)
    back = kept_program(program, gradient_of(program, X))
    for a, b in zip(back(*back.values), own(*own.values), strict=True):
        np.testing.assert_array_equal(a, b)


def test_constants_are_those_of_the_call() -> None:
    own = kept_program(program, gradient_of(program, X))
    settings["weights"] = WEIGHTS * 5
    traced = gradient_of(program, X * 2)
    again = kept_program(program, traced)
    assert again.jaxpr is own.jaxpr
    for a, b in zip(again(*again.values), traced(*traced.values), strict=True):
        np.testing.assert_array_equal(a, b)
    rounded_otherwise(own, 0)
    assert own.memo is again.memo and own.memo  # loops that round differently are kept, too
    for draw in (0, 1):
        for a, b in zip(rounded_otherwise(again, draw), rounded_otherwise(traced, draw), strict=True):
            np.testing.assert_array_equal(a, b)


def test_arrays_inside_loops_are_not_kept() -> None:
    def f(x: Any) -> Any:
        inner = settings["inner"]
        return jax.lax.scan(lambda c, _: (jax.jit(lambda c: c * inner)(c), None), x, length=2)[0]

    settings["inner"] = jnp.ones(3) * 7
    own = trace(f, (X,), {})
    assert inner_constants(own.jaxpr)
    kept_program(f, own)
    held = weakref.ref(settings.pop("inner"))
    del own
    jax.clear_caches()  # JAX keeps it, too
    gc.collect()
    assert held() is None


def test_compare_sees_what_changed_since_the_last_call() -> None:
    def reference(x: Any) -> Any:
        return jax.lax.scan(lambda c, w: (jnp.sin(c) * 2.0 + w, jnp.dot(c, c)), x, WEIGHTS)[0] + 2.0

    def changing(x: Any) -> Any:
        return jax.lax.scan(
            lambda c, w: (jnp.sin(c) * settings["factor"] + w, jnp.dot(c, c)), x, WEIGHTS
        )[0] + settings["factor"]  # fmt: skip

    verdicts = []
    for factor in (2.0, 3.0, 2.0):
        settings["factor"] = factor
        found = compare(reference, changing)(X)
        verdicts.append((found.first is None, sum(d.gradient for d in found.results)))
    assert verdicts == [(True, 1), (False, 0), (True, 1)]
