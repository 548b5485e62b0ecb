"""Primitives that hide their inner program: a site inside is recorded, or an error names it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from tests.core.comparing import seen_or_refused

from sonde import capture, sow

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


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: lambda x: lax.map(f, x)], ids=["", "jit", "map"])
def test_functions_with_their_own_rule_for_vmap_where_nothing_maps_them(wrap):
    f = wrap(lambda x: with_rule(x).sum())
    result, records = capture(f)(X)
    np.testing.assert_allclose(result, f(X))
    np.testing.assert_allclose(records["inside"].value, 2 * X)


def test_functions_with_their_own_rule_for_vmap_are_differentiated_around_the_capture():
    def loss(x):
        result, records = capture(jax.jit(lambda x: with_rule(x) ** 2))(x)
        return (result * records["inside"].value).sum()

    np.testing.assert_allclose(jax.jvp(loss, (X,), (np.ones_like(X),))[1], (24 * X**2).sum(), rtol=1e-6)


composite = lax.composite(lambda x: sow(jnp.sin(x), "inside"), name="test.sine")


@custom_partitioning
def partitioned(x):
    return sow(jnp.sin(x), "inside")


partitioned.def_partition(
    partition=lambda mesh, args, result: (mesh, jnp.sin, result.sharding, (args[0].sharding,)),
    infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
    sharding_rule="i -> i",
)


@jax.custom_vjp
def with_optimized_remat(x):
    return sow(jnp.sin(x), "inside")


with_optimized_remat.defvjp(
    lambda x: (sow(jnp.sin(x), "inside"), jnp.cos(x)), lambda cos, g: (cos * g,), optimize_remat=True
)


@pytest.mark.parametrize("f", [composite, partitioned, with_optimized_remat], ids=["composite", "partitioned", "remat"])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.jit(lambda x: f(x) + 0)])
def test_primitives_that_only_say_how_to_compute(f, wrap):
    f = wrap(f)
    result, records = capture(f)(X)
    np.testing.assert_allclose(result, jnp.sin(X), rtol=1e-6)
    np.testing.assert_allclose(records["inside"].value, jnp.sin(X), rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_custom_vjp_with_optimized_remat_is_differentiated(wrap):
    gradient = wrap(jax.grad(lambda x: (with_optimized_remat(x) ** 2).sum()))
    result, records = capture(gradient, grads=True)(X)
    np.testing.assert_allclose(result, gradient(X), rtol=1e-6)
    np.testing.assert_allclose(records["inside"].value, jnp.sin(X), rtol=1e-6)
