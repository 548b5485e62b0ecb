"""Arrays that are mapped wherever others are."""

import jax
import jax.numpy as jnp
from tests.core.comparing import equal

from sonde.core.marks.batch_like import along

X = jnp.arange(3.0)


def test_an_array_gets_the_mapped_axes_of_what_it_follows():
    """A gradient at it has a part for each example, through any number of maps."""

    def loss(x, other, nudge):
        (y,) = along([x], [other])
        return jnp.sin(y + nudge) * other

    total = lambda nudge: jax.vmap(jax.vmap(loss, (None, 0, 0)), (None, 0, 0))(0.5, jnp.outer(X, X), nudge).sum()
    equal(jax.grad(total)(jnp.zeros((3, 3))), jnp.cos(0.5) * jnp.outer(X, X))
    shape = lambda x, other: jax.eval_shape(jax.vmap(lambda o: along([x], [o])[0]), other).shape
    assert shape(jnp.ones(2), X) == (3, 2)


def test_it_is_the_identity_of_what_is_mapped_or_follows_nothing():
    assert along([X], []) == [X] and along([], [X]) == []
    equal(jax.jit(lambda x: along([x, 2 * x], [jnp.ones(2)]))(X), [X, 2 * X])
    equal(jax.vmap(lambda x: along([x], [x])[0], 0)(X), X)
    equal(jax.vmap(lambda x: along([x], [jnp.ones(2)])[0], 1)(X[None]), X[:, None])


def test_derivatives_are_those_of_the_identity():
    f = lambda x, other: jnp.sin(along([x], [other])[0]) * other
    for g in (f, jax.jit(f), jax.checkpoint(f)):
        equal(jax.grad(g, (0, 1))(0.5, 2.0), (2 * jnp.cos(0.5), jnp.sin(0.5)))
        equal(jax.jvp(g, (0.5, 2.0), (1.0, 1.0))[1], 2 * jnp.cos(0.5) + jnp.sin(0.5))
        equal(jax.vmap(jax.grad(g), (None, 0))(0.5, X), X * jnp.cos(0.5))
