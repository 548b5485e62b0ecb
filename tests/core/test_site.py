"""What is sown: any pytree, of any arrays, with leaves that are none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.comparing import equal

from sonde import capture, sow

X = jnp.array([0.5, -1.0, 2.0])


ODD = {
    "bf16": jnp.ones(3, jnp.bfloat16),
    "int8": jnp.arange(3, dtype=jnp.int8),
    "bool": jnp.array([True, False]),
    "complex": jnp.array([1 + 2j]),
    "empty": jnp.zeros((0, 3)),
    "scalar": jnp.float32(2),
    "numpy": np.arange(3.0, dtype=np.float32),
    "numpy scalar": np.float32(3.0),
    "key": jax.random.key(0),
    "keys": jax.random.split(jax.random.key(0), 3),
    "old key": jax.random.PRNGKey(0),
}


def same(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    assert np.array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", ODD)
def test_odd_arrays(name):
    value = ODD[name]
    for wrap in (lambda f: f, jax.jit):
        same(capture(wrap(lambda v: sow(v, "v")))(value)[1]["v"].value, value)
        same(jax.jit(capture(wrap(lambda v: sow(v, "v"))))(value)[1]["v"].value, value)
    scanned = lambda v: lax.scan(lambda c, _: (c, sow(v, "v") is None), 0, None, length=2)
    rows = capture(scanned)(value)[1]["v"].value
    same(rows[1], value)
    branched = lambda p, v: lax.cond(p, lambda v: (sow(v, "v"), 0)[1], lambda v: 1, v)
    same(capture(branched)(True, value)[1]["v"].value, value)
    record = capture(branched)(False, value)[1]["v"]
    assert record.value.dtype == value.dtype
    assert not record.taken[0]
    looped = lambda v: lax.while_loop(lambda i: i < 2, lambda i: (sow(v, "v"), i + 1)[1], 0)
    same(capture(looped)(value)[1]["v"].value, value)


@pytest.mark.parametrize("name", [n for n, v in ODD.items() if v.ndim and v.shape[0]])
def test_odd_arrays_under_vmap(name):
    value = ODD[name]
    same(capture(jax.vmap(lambda v: sow(v, "v")))(value)[1]["v"].value, jnp.asarray(value))


def test_gradients_beside_odd_arrays():
    def loss(x):
        tree = sow({"x": x * 2, "key": jax.random.key(0), "n": jnp.arange(2), "b": jnp.ones(2, jnp.bfloat16)}, "tree")
        return jnp.sum(tree["x"] ** 2)

    for wrap in (lambda f: f, jax.jit):
        gradient = capture(wrap(jax.grad(loss)), grads=True)(X)[1]["tree"].grad
        equal(gradient["x"], 4 * X)
        equal(gradient["n"], jnp.zeros(2))


def test_leaves_that_are_no_arrays_are_kept():
    class Thing:
        pass

    thing = Thing()

    def f(x):
        tree = {"x": x * 2, "none": None, "s": "text", "i": 3, "f": 2.5, "b": True, "c": 1j, "t": (thing, [], {})}
        back = sow(tree, "tree")
        assert back["s"] == "text"
        assert back["t"][0] is thing
        assert type(back["i"]) is int
        return back["x"]

    for looked in (capture(f), jax.jit(capture(f)), capture(jax.jit(f)), capture(lambda x: jax.jit(f)(x))):
        value = looked(X)[1]["tree"].value
        equal(value.pop("x"), X * 2)
        assert value == {"none": None, "s": "text", "i": 3, "f": 2.5, "b": True, "c": 1j, "t": (thing, [], {})}
        assert [type(value[k]) for k in "ifb"] == [int, float, bool]


@pytest.mark.parametrize("value", [None, "text", 3, 2.5, (), {}, [None, "a"]], ids=repr)
def test_sites_without_any_array(value):
    def f(x):
        assert sow(value, "v") == value
        return x

    for looked in (capture(f), jax.jit(capture(f)), capture(jax.jit(f)), capture(jax.grad(lambda x: f(x).sum()))):
        assert looked(X)[1]["v"].values == (value,)
    records = capture(lambda x: lax.scan(lambda c, r: (f(c), r), x, jnp.arange(2)))(X)[1]
    assert records["v"].values == (value,)
