"""What is remembered of a jaxpr goes when the jaxpr goes."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp

from sonde import capture, sow

X = jnp.array([0.5, -1.0, 2.0])


def test_the_engines_caches_do_not_grow():
    from sonde.core import inside, rewrite

    def entries():
        gc.collect()
        return len(inside._answers._entries) + len(rewrite._cache._entries)

    def look(n):
        for i in range(n):
            f = jax.jit(lambda x, i=i: sow(x * i, "h"))
            capture(lambda x: f(x))(X)

    look(3)
    before = entries()
    look(20)
    assert entries() <= before + 2
