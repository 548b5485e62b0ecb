"""The arrays of records: which there are, and with which axes they are leaves of the pytree."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.comparing import equal

import sonde
from sonde import capture, sow

OVER_AXES = {
    "one row": lambda a: a[1],
    "mean": lambda a: a.mean(0),
    "sum": lambda a: a.sum(0),
    "turned round": lambda a: a[::-1],
    "some rows": lambda a: a[np.array([2, 0])],
    "together": lambda a: jnp.stack([a, a]),
}


@pytest.mark.parametrize("way", ["eager", "capture in jit", "jit in capture"])
def test_tree_map_along_an_axis_that_some_leaves_do_not_vary_over(way):
    x, b = np.arange(6.0, dtype=np.float32).reshape(3, 2), np.array([10, 20], np.float32)
    f = jax.vmap(lambda x, b: sow({"x": x * 2, "b": b * 3}, "h")["x"], (0, None))
    capture = sonde.capture(jax.jit(f) if way == "jit in capture" else f)
    capture = jax.jit(capture) if way == "capture in jit" else capture
    found = capture(x, b)[1]
    wanted = {"x": x * 2, "b": np.broadcast_to(b * 3, (3, 2))}
    for fn in OVER_AXES.values():
        for mapped in (jax.tree.map(fn, found)["h"], jax.tree.map(fn, found["h"])):
            jax.tree.map(np.testing.assert_array_equal, mapped.value, jax.tree.map(fn, wanted))
    assert jax.tree.map(jnp.shape, jax.eval_shape(capture, x, b)[1]["h"].value) == {"x": (3, 2), "b": (3, 2)}
    many = jax.vmap(capture, (None, 0))(x, np.stack([b, 2 * b]))[1]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda a: a[0], many)["h"].value, wanted)


def test_flags_and_counts_have_the_axes_of_their_value():
    """So that what `jax.tree.map` does along an axis, it does to all of a record."""
    xs = jnp.arange(6.0).reshape(3, 2)

    def f(chosen, n, x):
        x = lax.cond(chosen, lambda x: sow(x * 2, "taken"), lambda x: x, x)
        return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, sow(s[1] + 1, "counted")), (0, x))[1]

    program = lambda chosen, n, xs: jax.vmap(f, (None, None, 0))(chosen, n, xs)
    for g in (capture(program), jax.jit(capture(program))):
        records = g(True, 2, xs)[1]
        equal((records["taken"].taken, records["counted"].counts), ((jnp.full(3, True),), (jnp.full(3, 2),)))
        last = jax.tree.map(lambda a: a[-1], records)
        equal((last["taken"].value, last["taken"].taken[0]), (xs[-1] * 2, True))
        equal((last["counted"].value, last["counted"].counts[0]), (xs[-1] * 2 + 2, 2))
    rows = lambda x: lax.scan(lambda c, x: (c, f(c > 0, 2, x)), 1.0, x)[1]
    record = capture(rows, last=2)(xs)[1]["counted"]
    assert (record.value.shape, record.counts[0].shape) == ((3, 2, 2), (3,))


def test_the_arrays_of_a_call_by_what_they_are():
    def f(x):
        return lax.cond(x.sum() > 0, lambda x: sow({"x": x, "n": 2.0}, "h")["x"], lambda x: x, x).sum()

    ((call, arrays),) = capture(jax.grad(f), grads=True)(jnp.ones(3))[1]["h"].calls()
    value, extras, ((spec, grad),) = call.parts(arrays)
    assert (call.size, len(value), list(extras)) == (len(arrays), call.value.n, ["taken"])
    assert spec is not None and spec.n == len(grad) and extras["taken"]
    equal([value[0], grad[0]], [jnp.ones(3), jnp.ones(3)])


def test_layouts_of_two_runs_are_equal_and_hash_alike():
    first, second = (capture(lambda x: sow(x * 2, "h"))(jnp.ones(3))[1].tree_flatten()[1] for _ in range(2))
    other = capture(lambda x: sow(x * 2, "h"))(jnp.ones((3, 1)))[1].tree_flatten()[1]
    assert first == second and hash(first) == hash(second) and first is not second
    assert first != other and first.whole is first


def test_a_pickled_layout_computes_its_hash_where_it_is_read():
    layout = jax.tree.structure(capture(lambda x: sow(x, "h"))(1.0)[1]).node_data()[1]
    hash(layout)
    read = pickle.loads(pickle.dumps(layout))
    assert not vars(read)  # what was computed here is not in the file
    assert read == layout and hash(read) == hash(layout)
