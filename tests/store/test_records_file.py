"""Records cross processes and files unchanged: values, gradients, axes, counts, flags."""

from __future__ import annotations

import collections
import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import store
from sonde.errors import StoreError

Pair = collections.namedtuple("Pair", "a b")


def program(x, n):
    h = sonde.sow({"a": x * 2, "b": [x.sum(), "text", 3]}, "block/h")
    half = sonde.sow(x.astype(jnp.bfloat16), "half")
    y, _ = jax.lax.scan(lambda c, w: (sonde.sow(c * w, "loop"), None), h["a"], jnp.arange(1.0, 4.0))
    y = jax.lax.cond(x.sum() > 100, lambda y: sonde.sow(y * 2, "branch"), lambda y: y, y)
    y = jax.lax.while_loop(lambda c: c[1] < n, lambda c: (sonde.sow(c[0] * 1.0, "while"), c[1] + 1), (y, 0))[0]
    sonde.sow(jax.random.key(3), "key")
    return jnp.vdot(y, y) + half.sum()


@pytest.fixture(scope="module")
def records():
    def step(x, n):
        return jax.vmap(program, (0, None))(x, n).sum()

    forward = sonde.capture(step)(jnp.ones((2, 3)), 4)[1]
    loss = lambda x: (sonde.sow(jnp.sin(x), "h") ** 2).sum() + (sonde.sow(x[:1], "h") ** 3).sum()
    backward = sonde.capture(jax.grad(loss), grads=True)(jnp.ones(3))[1]
    return forward, backward


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b) and list(a) == list(b) and repr(a) == repr(b)
    for path in a:
        for what in ("values", "grads", "counts", "taken"):
            mine, other = getattr(a[path], what), getattr(b[path], what)
            assert jax.tree.structure(mine) == jax.tree.structure(other)
            for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(other)):
                if not hasattr(x, "dtype"):
                    assert x == y
                    continue
                assert x.dtype == y.dtype
                if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                    x, y = jax.random.key_data(x), jax.random.key_data(y)
                np.testing.assert_array_equal(x, y)
        assert (a[path].axes, a[path].source) == (b[path].axes, b[path].source)


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_saved_and_loaded(tmp_path, records, ending):
    for i, each in enumerate(records):
        store.save(each, tmp_path / f"{i}.{ending}")
        same(each, store.load(tmp_path / f"{i}.{ending}"))
    assert len(list(tmp_path.iterdir())) == 2


def test_pickled_and_copied(records):
    for each in records:
        same(each, pickle.loads(pickle.dumps(each)))
        same(each, copy.deepcopy(each))


def test_what_a_file_cannot_hold(tmp_path):
    _, records = sonde.capture(lambda x: sonde.sow(Pair(x, x), "h"))(jnp.ones(2))
    with pytest.raises(TypeError, match="a value has a Pair in it"):
        store.save(records, tmp_path / "a.npz")
    with pytest.raises(TypeError, match="save takes the records of a capture, got dict"):
        store.save({}, tmp_path / "a.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
def test_files_that_hold_something_else(tmp_path, records, ending):
    file = tmp_path / f"a.{ending}"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        store.load(file)
    file.write_bytes(b"not this")
    with pytest.raises(StoreError, match="does not hold records"):
        store.load(file)
    store.save(records[0], file)
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(StoreError, match="does not hold records"):
        store.load(file)
