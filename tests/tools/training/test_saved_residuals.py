"""What is kept for the backward pass, against JAX's own count, by place and under a policy."""

import jax
import jax.numpy as jnp
import pytest

from sonde.tools import saved_residuals


def layer(x, w):
    h = jnp.tanh(x @ w)
    return h


def loss(params, x):
    for w in params["layers"]:
        x = layer(x, w)
    return jnp.sum(x**2)


PARAMS = {"layers": [jnp.ones((3, 3))] * 2}
X = jnp.ones((5, 3))


def test_places_and_sizes():
    kept = saved_residuals(jax.jit(loss))(PARAMS, X)
    computed = [r for r in kept if r.is_computed]
    assert {(r.function, r.variable) for r in computed if r.operation == "tanh"} == {("layer", "h")}
    assert kept.bytes == sum(r.bytes for r in computed) and set(kept.by_function()) >= {"layer"}
    assert {r.argument for r in kept if r.operation == "argument"} == {"[0]['layers'][0]", "[0]['layers'][1]", "[1]"}
    assert "are computed and kept" in repr(kept)


def test_policies_keep_less():
    everything = saved_residuals(loss)(PARAMS, X).bytes
    dots = saved_residuals(loss, policy=jax.checkpoint_policies.dots_saveable)(PARAMS, X)
    assert 0 < dots.bytes < everything
    assert {r.operation for r in dots if r.is_computed} == {"dot_general"}
    assert saved_residuals(loss, remat=True)(PARAMS, X).bytes == 0


def test_loops_stack_what_they_keep():
    def scanned(ws, x):
        return jnp.sum(jax.lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0])

    kept = saved_residuals(scanned)(jnp.ones((7, 3, 3)), X)
    assert (7, 5, 3, "layer", "h") in {(*r.shape, r.function, r.variable) for r in kept if r.is_computed}


def test_shapes_are_enough_and_integers_stay():
    types = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    f = lambda x, n: jnp.sum(jnp.sin(x) * n)
    assert saved_residuals(f)(types, 3).bytes == 64
    with pytest.raises(TypeError, match="saved_residuals takes a callable"):
        saved_residuals(3)
