"""Programs that are rewritten so that what a handler recorded comes out of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tests.core.comparing import equal

from sonde import capture, sow
from sonde.core.context import looking

X = jnp.array([0.5, -1.0, 2.0])


def test_a_numpy_constant_in_a_jitted_function_in_loops_and_branches():
    w = np.array([1.0, 2.0, 3.0], np.float32)
    f = jax.jit(lambda x: jnp.sin(sow(x * w, "h")))
    scanned = lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0].sum()
    equal(capture(jax.grad(scanned), grads=True)(X)[1]["h"].grad, jnp.cos(X * w)[None])
    branched = lambda x: lax.cond(x.sum() > 0, f, lambda x: x, x)
    equal(capture(jax.vmap(branched))(jnp.stack([X, -X]))[1]["h"].value, jnp.stack([X * w, jnp.zeros(3)]))


def test_a_capture_traces_a_jitted_function_once():
    traced = []

    @jax.jit
    def f(x):
        traced.append(looking() is not None)
        return sow(x * 2, "h")

    f(X), f(X)
    assert traced == [False]
    for _ in range(3):
        capture(lambda x: f(x))(X)
    assert traced == [False, True]
    f(X)
    assert traced == [False, True]
    for _ in range(3):
        capture(f)(X)
    assert traced in ([False, True], [False, True, True])
