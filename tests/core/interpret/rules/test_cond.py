"""Branches: the one taken has its value, the others zeros and a flag that says so."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tests.core.comparing import equal

from sonde import capture, sow

X = jnp.array([0.5, -1.0, 2.0])


def test_cond_has_zeros_and_a_flag_for_the_branch_not_taken():
    def f(x):
        return lax.cond(x > 0, lambda x: sow(x * 2, "yes"), lambda x: sow(x * 3, "no"), x)

    result, records = capture(f)(1.5)
    equal(result, 3.0)
    assert set(records) == {"yes", "no"}
    equal((records["yes"].value, records["yes"].taken), (3.0, (True,)))
    equal((records["no"].value, records["no"].taken), (0.0, (False,)))


def test_cond_with_one_path_in_both_branches_holds_the_value_of_the_one_taken():
    def f(x):
        return lax.cond(x > 0, lambda x: sow(x * 2, "h"), lambda x: sow(x * 3, "h"), x)

    for x, want in ((1.5, 3.0), (-1.0, -3.0)):
        record = capture(f)(x)[1]["h"]
        equal(record.values, (want,))
        assert record.taken == (None,)


def test_switch():
    def f(i, x):
        return lax.switch(i, [lambda x: sow(x, "a"), lambda x: sow(x * 2, "b"), lambda x: sow(x * 3, "a")], x)

    for i in (-5, 0, 1, 2, 7):  # switch clamps its index
        taken = min(max(i, 0), 2)
        _, records = capture(f)(i, 1.5)
        equal((records["a"].value, records["a"].taken), ([1.5, 0.0, 4.5][taken], (taken != 1,)))
        equal((records["b"].value, records["b"].taken), ([0.0, 3.0, 0.0][taken], (taken == 1,)))


def test_gradient_in_a_cond():
    def loss(x):
        return lax.cond(x > 0, lambda x: sow(x * 2, "yes") ** 2, lambda x: sow(x * 3, "no") ** 3, x)

    for wrap in (lambda f: f, jax.jit):
        _, records = capture(wrap(jax.grad(loss)), grads=True)(1.5)
        equal((records["yes"].grad, records["no"].grad), (6.0, 0.0))


def test_vmap_of_cond_with_a_mapped_predicate():
    def f(x):
        return lax.cond(x > 0, lambda x: sow(x * 2, "yes"), lambda x: sow(x * 3, "no"), x)

    for wrap in (lambda f: f, jax.jit):
        result, records = capture(wrap(jax.vmap(f)))(X)
        equal(result, jnp.where(X > 0, X * 2, X * 3))
        equal(records["yes"].value, jnp.where(X > 0, X * 2, 0))
        equal(records["no"].value, jnp.where(X > 0, 0, X * 3))
        equal(records["yes"].taken, (X > 0,))
        equal(records["no"].taken, (X <= 0,))


def test_vmap_of_cond_with_a_shared_predicate():
    f = lambda p, x: lax.cond(p, lambda x: sow(x * 2, "yes"), lambda x: sow(x * 3, "no"), x)
    _, records = capture(jax.vmap(f, in_axes=(None, 0)))(True, X)
    equal(records["yes"].value, X * 2)
    equal(records["no"].value, jnp.zeros(3))
    assert [bool(np.all(records[k].taken[0])) for k in ("yes", "no")] == [True, False]


def test_nested_conds_under_vmap():
    def f(x):
        inner = lambda x: lax.cond(x > 1, lambda x: sow(x * 2, "big"), lambda x: x, x)
        return lax.cond(x > 0, inner, lambda x: x, x)

    x = jnp.array([-2.0, 0.5, 3.0])
    record = capture(jax.vmap(f))(x)[1]["big"]
    equal((record.value, record.taken), ([0.0, 0.0, 6.0], (jnp.array([False, False, True]),)))


def test_gradients_of_a_cond_under_vmap():
    def loss(x):
        return lax.cond(x > 0, lambda x: sow(x * 2, "yes") ** 2, lambda x: sow(x * 3, "no") ** 3, x)

    _, records = capture(jax.vmap(jax.grad(loss)), grads=True)(X)
    equal(records["yes"].grad, jnp.where(X > 0, 4 * X, 0))
    equal(records["no"].grad, jnp.where(X > 0, 0, 27 * X**2))


def test_branches_of_which_one_is_differentiated_are_one_call():
    constant = jnp.array([3.0, 4.0, 5.0])

    def loss(x, which):
        branches = [lambda x: sow(2 * x, "h"), lambda x: x + sow(constant, "h")]
        return jnp.sum(lax.switch(which, branches, x) ** 2)

    for which, value, grad in [(0, 2 * X, 4 * X), (1, constant, jnp.zeros(3))]:
        record = capture(jax.grad(loss), grads=True)(X, which)[1]["h"]
        equal((record.value, record.grad, record.taken), (value, grad, (None,)))
    record = capture(jax.vmap(jax.grad(loss), (None, 0)), grads=True)(X, jnp.arange(2))[1]["h"]
    equal((record.value, record.grad), (jnp.stack([2 * X, constant]), jnp.stack([4 * X, jnp.zeros(3)])))


def test_records_are_in_an_order_that_all_branches_agree_with():
    orders = [("a", "b", "d"), ("b", "c"), ("c", "d", "e")]

    def branch(names):
        return lambda x: sum(sow(x + i, name) for i, name in enumerate(names))

    _, records = capture(lambda i, x: lax.switch(i, [branch(names) for names in orders], x))(1, X)
    assert list(records) == ["a", "b", "c", "d", "e"]
    equal([record.value for record in records.values()], [0 * X, X, X + 1, 0 * X, 0 * X])
