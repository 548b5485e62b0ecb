"""Sites of two branches at one place, under maps of which only some reach each of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from tests.core.comparing import equal

from sonde import capture, sow


def test_gradients_of_branches_that_are_mapped_over_different_axes_are_for_each_example():
    """One branch marks what one axis maps, the other what the other maps; the record has both."""
    ys, cs = jnp.array([1.5, -0.5]), jnp.array([0.2, 0.4, 0.7])

    def f(y, c):
        return lax.cond(y > 0, lambda: jnp.sin(sow(y, "h")) * c, lambda: jnp.sin(sow(c, "h")) * y)

    def over(first, second):
        def loss(ys, cs):
            return jax.vmap(jax.vmap(f, first), second)(ys, cs).sum()

        return capture(jax.grad(loss, (0, 1)), grads=True)(ys, cs)[1]["h"]

    value = jnp.stack([jnp.full(3, 1.5), cs])
    grad = jnp.stack([jnp.cos(1.5) * cs, jnp.cos(cs) * -0.5])
    record = over((None, 0), (0, None))
    equal((record.values, record.grads), ((value,), (grad,)))
    record = over((0, None), (None, 0))
    equal((record.values, record.grads), ((value.T,), (grad.T,)))


def test_a_branch_that_does_not_vary_beside_one_that_does_is_the_same_call():
    cs = jnp.array([0.2, 0.4, 0.7])

    def f(x, c, chosen):
        return lax.cond(chosen, lambda: jnp.sin(sow(x, "h")), lambda: jnp.sin(sow(c, "h")) * x)

    for chooser, value in ((lambda c: True, jnp.full(3, 1.5)), (lambda c: c > 0.5, jnp.array([0.2, 0.4, 1.5]))):
        loss = lambda x, cs: jax.vmap(lambda c: f(x, c, chooser(c)))(cs).sum()
        equal(capture(loss)(jnp.float32(1.5), cs)[1]["h"].values, (value,))
        record = capture(jax.grad(loss, (0, 1)), grads=True)(jnp.float32(1.5), cs)[1]["h"]
        equal((record.values, record.grads), ((value,), (jnp.cos(value) * jnp.where(value == 1.5, 1, 1.5),)))


def test_vmap_of_custom_jvp_whose_rule_skips_the_site():
    @jax.custom_jvp
    def h(x):
        return jnp.sin(sow(x, "h"))

    h.defjvp(lambda primals, tangents: (jnp.sin(primals[0]), 3.0 * tangents[0]))
    ys, cs = jnp.array([1.5, -0.5]), jnp.array([0.2, 0.4, 0.7])

    def loss(ys, cs):
        f = lambda y, c: lax.cond(c > 0.5, lambda: h(y), lambda: h(c) * y)
        return jax.vmap(jax.vmap(f, (None, 0)), (0, None))(ys, cs).sum()

    record = capture(loss, grads=True)(ys, cs)[1]["h"]
    equal(record.value, jnp.array([[0.2, 0.4, 1.5], [0.2, 0.4, -0.5]]))
    equal(jax.grad(lambda ys: capture(loss, grads=True)(ys, cs)[0])(ys), jnp.full(2, jnp.sin(0.2) + jnp.sin(0.4) + 3.0))
