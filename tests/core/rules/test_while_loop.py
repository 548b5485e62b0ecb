"""`while_loop`: mapped lengths, loops that are not used, last iterations, sites in the test."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde

N, X = jnp.array([1, 3]), jnp.array([1.0, 10.0])


def adding(n: Any, x: Any) -> Any:
    def body(state: Any) -> Any:
        i, c = state
        return i + 1, sonde.sow(c + x, "c")

    return lax.while_loop(lambda s: s[0] < n, body, (0, 0.0))[1]


def by_hand(n: int, x: float, last: int) -> list[float]:
    rows = [x * (i + 1) for i in range(n)][-last:]
    return rows + [0.0] * (last - len(rows))


@pytest.mark.parametrize("last", [1, 2])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_axes_of_one_size_are_not_taken_for_each_other(wrap: Callable, last: int) -> None:
    by_length_first = jax.vmap(jax.vmap(adding, (None, 0)), (0, None))
    by_value_first = jax.vmap(jax.vmap(adding, (0, None)), (None, 0))
    expected = np.array([[by_hand(int(n), float(x), last) for x in X] for n in N])  # length, value, row
    for program, order in ((by_length_first, (0, 1)), (by_value_first, (1, 0))):
        _, records = wrap(sonde.capture(program, last=last))(N, X)
        value = np.asarray(records["c"].value)
        wanted = np.moveaxis(expected.transpose(*order, 2), -1, 0)
        np.testing.assert_allclose(value, wanted if last > 1 else wanted[0])
        np.testing.assert_array_equal(records["c"].counts[0], N)


def test_loops_in_loops_with_lengths_mapped_by_different_axes() -> None:
    def nested(n: Any, m: Any, x: Any) -> Any:
        def body(state: Any) -> Any:
            i, c = state
            return i + 1, adding(m, sonde.sow(c + x, "outer"))

        return lax.while_loop(lambda s: s[0] < n, body, (0, 0.0))[1]

    m, x = jnp.array([2, 1]), jnp.array([1.0, 10.0])
    program = nested
    for axes in ((None, None, 0), (None, 0, None), (0, None, None)):
        program = jax.vmap(program, axes)
    _, records = sonde.capture(program)(N, m, x)

    def run(n: int, m: int, x: float) -> tuple[float, float]:
        outer = inner = result = 0.0
        for _ in range(n):
            outer = result + x
            inner = result = m * outer
        return outer, inner

    expected = np.array([[[run(int(n), int(k), float(v)) for v in x] for k in m] for n in N])
    np.testing.assert_allclose(records["outer"].value, expected[..., 0])
    np.testing.assert_allclose(records["c"].value, expected[..., 1])


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["plain", "jit", "remat"])
def test_a_loop_that_is_not_used_in_a_differentiated_function(wrap: Callable, grads: bool) -> None:
    def loss(x: Any) -> Any:
        lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, sonde.sow(s[1] * x, "w")), (0, 1.0))
        return x**2

    gradient, records = sonde.capture(jax.grad(wrap(loss)), grads=grads)(2.0)
    assert gradient == 4.0
    assert records["w"].values == (8.0,)
    assert records["w"].counts == (3,)


def test_a_loop_in_a_branch_that_is_not_taken_has_not_run() -> None:
    f = lambda p, x: lax.cond(p, lambda x: adding(2, x), lambda x: x, x)
    _, records = sonde.capture(jax.jit(f))(False, 1.0)
    assert (records["c"].taken, records["c"].counts) == ((False,), (0,))
    _, records = sonde.capture(jax.vmap(f, (0, None)))(jnp.array([True, False]), 1.0)
    np.testing.assert_array_equal(records["c"].counts[0], [2, 0])


def test_sites_in_the_test_of_a_loop_keep_their_last_runs_too() -> None:
    def f(n: Any) -> Any:
        return lax.while_loop(lambda i: sonde.sow(i, "seen") < n, lambda i: i + 1, 0)

    _, records = sonde.capture(f, last=3)(5)
    np.testing.assert_array_equal(records["seen"].value, [3, 4, 5])
    assert records["seen"].counts == (5,)  # iterations, as for every site of the loop
    _, records = sonde.capture(jax.vmap(f), last=3)(jnp.array([1, 5]))
    np.testing.assert_array_equal(records["seen"].value.T, [[0, 1, 0], [3, 4, 5]])
