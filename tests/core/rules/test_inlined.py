"""Primitives that hide their inner program: a site inside is recorded, or an error names it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from tests.core.comparing import seen_or_refused

from sonde import sow

X = jnp.array([0.5, -1.0, 2.0])


def linear_solve(b):
    solve = lambda matvec, b: sow(b / 2, "inside")
    return lax.custom_linear_solve(lambda x: 2 * x, b, solve, symmetric=True)


def root(x):
    return lax.custom_root(
        lambda y: y**2 - 4, x * 0 + 1, lambda f, y: sow(y * 0 + 2, "inside"), lambda g, y: y / g(jnp.ones_like(y))
    )


@jax.custom_batching.custom_vmap
def with_rule(x):
    return sow(x * 2, "inside")


@with_rule.def_vmap
def _rule(axis_size, in_batched, x):
    return sow(x * 2, "inside"), True


@pytest.mark.parametrize(
    "f", [linear_solve, root, with_rule, jax.vmap(with_rule)], ids=["solve", "root", "vmap", "mapped"]
)
@pytest.mark.parametrize(
    "wrap", [lambda f: f, jax.jit, lambda f: jax.jit(lambda x: f(x) + 0)], ids=["", "jit", "in jit"]
)
def test_primitives_that_hide_their_inside_are_seen_or_refused(f, wrap):
    seen_or_refused(wrap(f), __file__)


def test_primitives_that_hide_their_inside_in_a_scan_are_seen_or_refused():
    for f in (linear_solve, with_rule):
        seen_or_refused(lambda x: lax.scan(lambda c, row: (c + f(row), None), 0.0, x)[0], __file__)
