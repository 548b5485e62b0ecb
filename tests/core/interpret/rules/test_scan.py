"""Scans and what is made of them: a row per iteration, in the order in which they ran, gradients too."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.comparing import equal, kinds

from sonde import capture, edit, sow
from sonde.tools import first_nonfinite

X = jnp.array([0.5, -1.0, 2.0])


def test_scan_has_one_row_per_iteration():
    def f(x):
        return lax.scan(lambda c, row: (sow(c + row, "c"), row), 0.0, x)[0]

    result, records = capture(f)(X)
    equal(result, X.sum())
    equal(records["c"].value, jnp.cumsum(X))
    assert kinds(records["c"]) == [["scan"]]
    assert records["c"].axes[0][0].size == 3


def test_scan_in_reverse_is_in_the_order_in_which_it_ran():
    def f(x):
        return lax.scan(lambda c, row: (sow(c + row, "c"), row), 0.0, x, reverse=True)[0]

    equal(capture(f)(X)[1]["c"].value, jnp.cumsum(X[::-1]))


def test_map_and_fori_loop():
    records = capture(lambda x: lax.map(lambda row: sow(row * 2, "m"), x))(X)[1]
    equal(records["m"].value, X * 2)
    records = capture(lambda x: lax.fori_loop(2, 5, lambda i, c: sow(c * i, "f"), x))(1.0)[1]
    equal(records["f"].value, [2.0, 6.0, 24.0])


@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_of_a_scan_is_aligned_with_its_iterations(reverse):
    def loss(x):
        return lax.scan(lambda c, row: (jnp.sin(sow(c + row, "c")), None), jnp.zeros(()), x, reverse=reverse)[0]

    def by_hand(perturbations, x):
        carry = 0.0
        for i, row in enumerate(x[::-1] if reverse else x):
            carry = jnp.sin(carry + row + perturbations[i])
        return carry

    want = jax.grad(by_hand)(jnp.zeros(3), X)
    for wrap in (lambda f: f, jax.jit):
        equal(capture(wrap(jax.grad(loss)), grads=True)(X)[1]["c"].grad, want)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_taken_inside_a_scan_body_is_not_turned_round(reverse):
    def f(x):
        step = lambda c, row: (c, jax.grad(lambda y: jnp.sin(sow(y * 2, "h")))(row))
        return lax.scan(step, 0.0, x, reverse=reverse)[1]

    record = capture(f, grads=True)(X)[1]["h"]
    order = X[::-1] if reverse else X
    equal((record.value, record.grad), (order * 2, jnp.cos(order * 2)))


def test_a_value_that_is_the_same_in_every_iteration_has_a_row_for_each():
    def loss(w, x):
        return lax.scan(lambda c, row: (c + row * sow(w * 2, "w"), None), 0.0, x)[0]

    for f in (loss, jax.jit(loss), jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.checkpoint(loss))):
        record = capture(f, grads=True)(1.5, X)[1]["w"]
        equal(record.value, jnp.full(3, 3.0))
        assert kinds(record) == [["scan"]]
    equal(capture(jax.grad(loss), grads=True)(1.5, X)[1]["w"].grad, X)


def test_gradient_of_a_scan_inside_a_scan_body():
    def inner(y):
        return lax.scan(lambda c, row: (jnp.sin(sow(c + row, "c")), None), jnp.zeros(()), y + jnp.arange(3.0))[0]

    f = lambda x: lax.map(jax.grad(inner), x)
    rows = [capture(jax.grad(inner), grads=True)(x)[1]["c"].grad for x in X]
    equal(capture(f, grads=True)(X)[1]["c"].grad, jnp.stack(rows))


def test_a_backward_pass_that_is_the_same_in_every_iteration_adds_to_each_row():
    """JAX moves it out of a loop that is differentiated."""

    def row(x, same):
        _, pull = jax.vjp(lambda y: sow(y, "h"), jnp.array(0.25))
        return jnp.sin(pull(x)[0] + pull(same)[0])

    def loss(w):
        return jnp.sum(lax.map(lambda x: row(w * x, w), X))

    for f in (loss, jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.grad(loss))):
        equal(capture(f, grads=True)(0.5)[1]["h"].grad, 0.5 * X + 0.5)


def test_a_loop_that_is_the_same_in_every_iteration_and_differentiated_there_has_rows_for_each():
    """The inner loop is anchored before the outer one is differentiated, and depends on no value of it."""

    def inner(y):
        return lax.scan(lambda c, _: (jnp.sin(sow(c, "c")), None), y, None, length=2)[0]

    def loss(w):
        def body(c, _):
            _, pull = jax.vjp(inner, jnp.array(0.25))
            return c + pull(c)[0], None

        return lax.scan(body, w, None, length=3)[0]

    rows = jnp.broadcast_to(jnp.array([0.25, jnp.sin(0.25)]), (3, 2))
    for f in (loss, jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.grad(loss))):
        equal(capture(f)(0.5)[1]["c"].value, rows)


def test_a_loop_of_no_iterations():
    def run(x):
        return jax.lax.scan(lambda c, _: (sow(c * 2, "h"), None), x, length=0)[0]

    assert first_nonfinite(run)(jnp.ones(2)) is None
    assert edit(run, {"h": lambda h: h + 1})(jnp.ones(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_a_value_with_two_names_in_a_differentiated_loop(wrap):
    def loss(x):
        def body(carry, row):
            value = jnp.sin(carry) * row
            sow(value, "a")
            return carry + sow(value, "b"), None

        return lax.scan(body, x, jnp.arange(3.0))[0]

    records = wrap(capture(jax.grad(loss), grads=True))(0.5)[1]
    second = np.sin(0.5)
    third = 2 * np.sin(0.5 + second)
    np.testing.assert_allclose(records["a"].value, [0, second, third], rtol=1e-6)
    np.testing.assert_allclose(records["b"].value, [0, second, third], rtol=1e-6)
    after_second = 1 + 2 * np.cos(0.5 + second)
    np.testing.assert_allclose(records["b"].grad, [(1 + np.cos(0.5)) * after_second, after_second, 1], rtol=1e-5)
    np.testing.assert_array_equal(records["a"].grad, np.zeros(3))
