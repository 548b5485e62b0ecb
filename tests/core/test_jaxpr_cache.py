"""What is remembered of a jaxpr goes when the jaxpr goes."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp

from sonde import capture, sow
from sonde.core.jaxpr_cache import JaxprCache

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


class Jaxpr:
    """Stands for a jaxpr: two may be equal, and are two."""

    def __eq__(self, other):
        return isinstance(other, Jaxpr)

    def __hash__(self):
        return 0


def test_entries_go_by_identity_and_go_with_their_jaxpr():
    cache, one, other = JaxprCache(), Jaxpr(), Jaxpr()
    cache.of(one)["x"] = 1
    assert dict(cache.of(one)) == {"x": 1}
    assert dict(cache.of(other)) == {}
    del one
    gc.collect()
    assert len(cache._entries) == 1


def test_the_ways_to_look_at_one_jaxpr_are_bounded():
    cache, jaxpr = JaxprCache(), Jaxpr()
    for i in range(1000):
        cache.of(jaxpr)[i] = i
    assert 0 < len(cache.of(jaxpr)) < 1000
    assert 999 in cache.of(jaxpr)
