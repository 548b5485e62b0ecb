"""Calls as functions of their arrays."""

import jax
import jax.numpy as jnp

from sonde.core.session.functionalize import shapes_of_call


def test_shapes_without_computing():
    seen = []

    def run(f, args, kwargs):
        seen.append(isinstance(args[0]["x"], jax.core.Tracer))
        return f(*args, **kwargs)

    x = {"x": jnp.ones(3), "name": "any", "shape": jax.ShapeDtypeStruct((2,), jnp.int32)}
    found = shapes_of_call(run, lambda tree, n: (tree["x"] * n, tree["shape"]), (x,), {"n": 2}, None)
    assert [y.shape for y in found] == [(3,), (2,)] and seen == [True]
