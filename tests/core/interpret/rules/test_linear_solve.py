"""Sites in `custom_linear_solve`, against solvers that return what passes the sites by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from tests.core.comparing import equal

import sonde
from sonde import capture, sow

MATRIX = jnp.array([[3.0, 1.0], [0.5, 2.0]])
RIGHT = jnp.array([1.0, 2.0])
MANY = jnp.stack([RIGHT, -RIGHT, 3 * RIGHT])


def iterates(apply: Any, b: Any) -> Any:
    """The iterates of a solver, one row each."""

    def step(x, _):
        x = x - 0.2 * (apply(x) - b)
        return x, x

    return lax.scan(step, b, length=25)[1]


def solve(apply: Any, b: Any) -> Any:
    def step(x, _):
        return sow(x - 0.2 * (apply(x) - b), "iterate"), None

    return lax.scan(step, b, length=25)[0]


def solution(matrix: Any, b: Any) -> Any:
    return lax.custom_linear_solve(lambda x: sow(matrix @ x, "product"), b, solve, transpose_solve=solve)


def loss(matrix: Any, b: Any) -> Any:
    return jnp.sum(solution(matrix, b) ** 2)


def test_the_solver_records_its_steps():
    by_hand = iterates(lambda x: MATRIX @ x, RIGHT)
    for f in (solution, jax.jit(solution)):
        result, records = capture(f)(MATRIX, RIGHT)
        equal(result, by_hand[-1])
        equal(records["iterate"].value, by_hand)
        # Of the map only what the solver runs is recorded, not what is there for derivatives.
        equal(records["product"].value, jnp.stack([RIGHT, *by_hand[:-1]]) @ MATRIX.T)


def test_every_example_and_every_iteration_has_its_steps():
    by_hand = jnp.stack([iterates(lambda x: MATRIX @ x, b) for b in MANY], 1)
    result, records = capture(jax.vmap(solution, (None, 0)))(MATRIX, MANY)
    equal(result, by_hand[-1])
    equal(records["iterate"].value, by_hand)
    _, records = capture(lambda m: lax.map(lambda b: solution(m, b), MANY))(MATRIX)
    equal(records["iterate"].value, jnp.swapaxes(by_hand, 0, 1))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["", "jit"])
def test_the_backward_pass_solves_again(wrap: Any) -> None:
    """Its steps are a second call, and what the map computes for the derivative is a call with a gradient."""
    steps = iterates(lambda x: MATRIX @ x, RIGHT)
    backward = iterates(lambda x: MATRIX.T @ x, 2 * steps[-1])
    run = wrap(jax.grad(loss, (0, 1)))
    result, records = capture(run, grads=True)(MATRIX, RIGHT)
    equal(result, run(MATRIX, RIGHT))
    equal(result[1], backward[-1])
    equal(records["iterate"].values, (steps, backward))
    product = records["product"]
    equal(product.values[1], MATRIX @ steps[-1])
    equal(product.grads[1], -backward[-1])


AROUND = {
    "grad": (lambda f: jax.grad(f, (0, 1)), RIGHT),
    "vmap": (lambda f: jax.vmap(f, (None, 0)), MANY),
    "vmap of grad": (lambda f: jax.vmap(jax.grad(f, (0, 1)), (None, 0)), MANY),
    "grad of vmap": (lambda f: jax.grad(lambda m, b: jax.vmap(f, (None, 0))(m, b).sum(), (0, 1)), MANY),
}


@pytest.mark.parametrize(("around", "b"), AROUND.values(), ids=AROUND)
def test_transforms_around_the_capture_keep_the_derivatives(around: Any, b: Any) -> None:
    captured = around(lambda m, b: capture(loss)(m, b)[0])
    equal(captured(MATRIX, b), around(loss)(MATRIX, b))


def test_an_edit_changes_the_solver():
    edited = sonde.edit(solution, {"iterate": lambda x: x * 0})
    equal(edited(MATRIX, RIGHT), jnp.zeros(2))


def test_what_jax_solves_with_it():
    matrix = MATRIX @ MATRIX.T
    program = lambda b: jax.scipy.sparse.linalg.cg(lambda x: sow(matrix @ x, "product"), b)[0]
    result, records = capture(jax.grad(lambda b: program(b).sum()))(RIGHT)
    equal(result, jnp.linalg.solve(matrix, jnp.ones(2)))
    assert len(records["product"].values) == 4  # the residual and the loop, forward and backward
