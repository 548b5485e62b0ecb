"""The carry of a while loop for its records, iteration by iteration, against a list; gates from outside the loop."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.making import item_of, site_of

from sonde.core.interpret.rules.loop_carry import LoopState, gate_from_outside
from sonde.core.marks.axes import Axis
from sonde.core.marks.site import View

SITE = site_of(np.zeros(2))
SCALAR = jax.typeof(np.False_)


def keep_of(item, *, active=SCALAR, last=1, loop=None):
    return LoopState([item.spec], range(item.size), active, last, loop)


def run(keep, values, like):
    """Carries what `values` has, one after another; returns what the records will have."""
    kept = keep.empty([jax.typeof(np.asarray(like))])
    for i, value in enumerate(values):
        kept = keep.update(jnp.int32(i), [value], kept)
    n = jnp.int32(len(values))
    (item,) = keep.items(kept, n, object(), runs=n)
    return item


VALUES = [np.array([i, -i], np.float32) for i in range(1, 6)]


@pytest.mark.parametrize("n", [0, 1, 5])
def test_the_last_iteration_or_zeros(n):
    item = run(keep_of(item_of(SITE, VALUES[0])), VALUES[:n], VALUES[0])
    np.testing.assert_array_equal(item.leaves[0], VALUES[n - 1] if n else np.zeros(2))
    assert item.extras["count"] == n
    assert item.view.axes == ()
    assert len(item.loops) == 1


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5])
def test_the_last_iterations_in_order_and_the_rest_empty(n):
    item = run(keep_of(item_of(SITE, VALUES[0]), last=3), VALUES[:n], VALUES[0])
    expected = [*VALUES[:n][-3:], *[np.zeros(2)] * (3 - min(n, 3))]
    np.testing.assert_array_equal(item.leaves[0], expected)
    assert [(axis.kind, axis.size) for axis in item.view.axes] == [("while", 3)]
    assert not item.view.axes[0].on_extra("count")


def test_a_run_before_the_first_iteration():
    keep = keep_of(item_of(SITE, VALUES[0]), last=2)
    kept = keep.update(jnp.int32(1), [VALUES[1]], keep.begin([VALUES[0]]))
    (item,) = keep.items(kept, jnp.int32(1), object(), runs=jnp.int32(2))
    np.testing.assert_array_equal(item.leaves[0], VALUES[:2])
    assert item.extras["count"] == 1


def test_every_element_stops_by_itself():
    """The axis of the predicate is the second of the value; an array that lacks it gets it."""
    loop = object()
    axes = (Axis("vmap", 2), Axis("vmap", 3, leaves=(True, False), stopping=frozenset({loop})))
    site = site_of((np.float32(0), np.float32(0)))
    x, w = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([7.0, 8.0], np.float32)
    item = item_of(site, x, w, view=View(axes=axes))
    keep = keep_of(item, active=jax.typeof(np.zeros(3, bool)), loop=loop)
    np.testing.assert_array_equal(keep.no_iterations(), [0, 0, 0])
    kept = keep.empty([jax.typeof(a) for a in (x, w)])
    new = keep.update(jnp.zeros(3, jnp.int32), [x, w], kept)
    assert [a.shape for a in new] == [(3, 2), (3, 2)]  # the axis of the predicate in front, to select along
    active = np.array([True, False, True])
    kept = [jnp.where(active[:, None], a, b) for a, b in zip(new, kept)]
    count = jnp.asarray(active, jnp.int32)
    (found,) = keep.items(kept, count, object(), runs=count)
    np.testing.assert_array_equal(found.leaves[0], x * active)
    np.testing.assert_array_equal(found.leaves[1], w[:, None] * active)
    assert [axis.on_extra("count") for axis in found.view.axes] == [False, True]


def test_what_is_known_before_the_loop_is_there_if_it_never_runs():
    item = dataclasses.replace(item_of(SITE, VALUES[0]), extras={"taken": np.True_})
    keep = keep_of(item)
    types = [jax.typeof(x) for x in item.arrays]
    kept = keep.empty(types, [None, np.True_])
    (found,) = keep.items(kept, jnp.int32(0), object(), runs=jnp.int32(0))
    np.testing.assert_array_equal(found.leaves[0], [0, 0])
    assert bool(found.extras["taken"])
    (unknown,) = keep.items(keep.empty(types), jnp.int32(0), object(), runs=jnp.int32(0))
    assert not bool(unknown.extras["taken"])


def test_what_a_reduce_function_returned_has_every_axis_already():
    loop = object()
    axes = (Axis("vmap", 3, leaves=(False,), stopping=frozenset({loop})),)
    x = np.arange(3, dtype=np.float32)
    item = dataclasses.replace(item_of(site_of(np.float32(0)), x, view=View(axes=axes)), tree=jax.tree.structure(0))
    keep = keep_of(item, active=jax.typeof(np.zeros(3, bool)), loop=loop)
    (kept,) = keep.update(jnp.zeros(3, jnp.int32), [x], keep.empty([jax.typeof(x)]))
    np.testing.assert_array_equal(kept, x)


A, B = np.array([True, False, True]), np.array([True, True, False])


def gate_of(body, *consts, carry=0.5):
    """The gate that a body of a loop, a function of constants and what is carried, returns as its only output."""
    jaxpr = jax.make_jaxpr(body)(*consts, carry)
    return gate_from_outside(jaxpr, 0, consts)


FROM_OUTSIDE = {
    "a constant": (lambda a, b, c: a, A),
    "two that are joined": (lambda a, b, c: a & b, A & B),
    "in another shape": (lambda a, b, c: a[:, None], A[:, None]),
    "in a jitted function": (lambda a, b, c: jax.jit(lambda x, y: x & y)(a, b), A & B),
    "in a rematerialized function": (lambda a, b, c: jax.checkpoint(lambda x, y: x & y)(b, a), A & B),
    "a row of a loop inside": (
        lambda a, b, c: lax.scan(lambda s, _: (s + 1, a & b), c, length=2)[1],
        np.stack([A & B] * 2),
    ),
}


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_a_gate_that_is_known_before_the_loop(name):
    body, expected = FROM_OUTSIDE[name]
    np.testing.assert_array_equal(gate_of(body, A, B), expected)


FROM_INSIDE = {
    "what is carried decides": lambda a, b, c: a & (c > 0),
    "joined by another function": lambda a, b, c: a | b,
    "negated": lambda a, b, c: ~a,
    "carried by a loop inside": lambda a, b, c: lax.scan(lambda s, _: (s & b, None), a, length=2)[0],
    "a constant of the body": lambda a, b, c: jnp.full(3, True),
}


@pytest.mark.parametrize("name", FROM_INSIDE)
def test_a_gate_that_only_the_body_knows(name):
    assert gate_of(FROM_INSIDE[name], A, B) is None


def test_what_is_carried_is_no_constant():
    jaxpr = jax.make_jaxpr(lambda a, c: c)(A, B)
    assert gate_from_outside(jaxpr, 0, [A]) is None
