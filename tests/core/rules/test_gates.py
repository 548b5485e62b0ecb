"""Gates of choices that were made outside a loop, read from the body of the loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sonde.core.rules.gates import gate_from_outside

A, B = np.array([True, False, True]), np.array([True, True, False])


def gate_of(body, *consts, carry=0.5):
    """The gate that a body of a loop, a function of constants and what is carried, returns as its only output."""
    jaxpr = jax.make_jaxpr(body)(*consts, carry)
    return gate_from_outside(jaxpr, 0, consts)


FROM_OUTSIDE = {
    "a constant": (lambda a, b, c: a, A),
    "two that are joined": (lambda a, b, c: a & b, A & B),
    "in another shape": (lambda a, b, c: a[:, None], A[:, None]),
    "in a jitted function": (lambda a, b, c: jax.jit(lambda x, y: x & y)(a, b), A & B),
    "in a rematerialised function": (lambda a, b, c: jax.checkpoint(lambda x, y: x & y)(b, a), A & B),
    "a row of a loop inside": (
        lambda a, b, c: lax.scan(lambda s, _: (s + 1, a & b), c, length=2)[1],
        np.stack([A & B] * 2),
    ),
}


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_a_gate_that_is_known_before_the_loop(name):
    body, expected = FROM_OUTSIDE[name]
    np.testing.assert_array_equal(gate_of(body, A, B), expected)


FROM_INSIDE = {
    "what is carried decides": lambda a, b, c: a & (c > 0),
    "joined by another function": lambda a, b, c: a | b,
    "negated": lambda a, b, c: ~a,
    "carried by a loop inside": lambda a, b, c: lax.scan(lambda s, _: (s & b, None), a, length=2)[0],
    "a constant of the body": lambda a, b, c: jnp.full(3, True),
}


@pytest.mark.parametrize("name", FROM_INSIDE)
def test_a_gate_that_only_the_body_knows(name):
    assert gate_of(FROM_INSIDE[name], A, B) is None


def test_what_is_carried_is_no_constant():
    jaxpr = jax.make_jaxpr(lambda a, c: c)(A, B)
    assert gate_from_outside(jaxpr, 0, [A]) is None
