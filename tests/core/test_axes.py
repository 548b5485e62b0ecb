"""Axes in front of values: which arrays have them, and how arrays that have different ones meet."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from tests.core.comparing import equal, kinds

from sonde import capture, sow

X = jnp.array([0.5, -1.0, 2.0])


def test_vmap_puts_the_mapped_axis_first():
    xs = jnp.arange(6.0).reshape(3, 2)
    result, records = capture(jax.vmap(lambda x: sow(x * 2, "h"), in_axes=1, out_axes=1))(xs)
    equal(result, xs * 2)
    equal(records["h"].value, xs.T * 2)
    assert kinds(records["h"]) == [["vmap"]]


def test_several_at_once_loops_first_then_mapped_axes():
    def f(x):  # vmap of scan of vmap of scan
        inner = lambda x: lax.scan(lambda c, i: (c, sow(x + 10 * c + i, "h")), 1.0, jnp.arange(2.0))[1]
        outer = lambda x: lax.scan(lambda c, i: (c, jax.vmap(inner)(x + 100 * i)), 0.0, jnp.arange(4.0))[1]
        return jax.vmap(outer)(x)

    x = jnp.arange(15.0).reshape(5, 3)
    record = capture(f)(x)[1]["h"]
    assert kinds(record) == [["scan", "scan", "vmap", "vmap"]]
    assert [axis.size for axis in record.axes[0]] == [4, 2, 5, 3]
    outer, inner = 100 * jnp.arange(4.0), jnp.arange(2.0)
    equal(record.value, outer[:, None, None, None] + inner[:, None, None] + 10 + x)


def test_nested_vmaps_outermost_axis_first():
    f = lambda x, y: sow(x + 10 * y, "h")
    result, records = capture(jax.vmap(jax.vmap(f, (None, 0)), (0, None)))(jnp.arange(2.0), jnp.arange(3.0))
    equal(records["h"].value, jnp.arange(2.0)[:, None] + 10 * jnp.arange(3.0))
    equal(result, records["h"].value)
    _, records = capture(jax.vmap(jax.vmap(f, (0, None)), (None, 0)))(jnp.arange(2.0), jnp.arange(3.0))
    equal(records["h"].value, jnp.arange(2.0) + 10 * jnp.arange(3.0)[:, None])


def test_a_leaf_that_is_not_mapped_gets_the_axis_too():
    def f(x, w):
        tree = sow({"x": x * 2, "w": w, "k": jnp.arange(2)}, "tree")
        return tree["x"] + tree["w"]

    for wrap in (lambda f: f, jax.jit):
        value = capture(wrap(jax.vmap(f, (0, None))))(X, 5.0)[1]["tree"].value
        equal(value, {"x": X * 2, "w": jnp.full(3, 5.0), "k": jnp.tile(jnp.arange(2), (3, 1))})


def test_a_value_that_does_not_depend_on_the_mapped_axis_is_recorded_once():
    record = capture(jax.vmap(lambda x, w: x + sow(w * 2, "w"), (0, None)))(X, 5.0)[1]["w"]
    equal(record.values, (10.0,))
    assert kinds(record) == [[]]
