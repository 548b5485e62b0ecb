"""One readable test for every place a site can be in: what its record holds there.

The first part follows the table of promises row by row; the rest are the cases that are easy to get wrong.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import sonde
from sonde import capture, sow

X = jnp.array([0.5, -1.0, 2.0])


def equal(got: Any, want: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


def mesh_of_two() -> Any:
    return jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))


def kinds(record: sonde.Record) -> list[list[str]]:
    return [[axis.kind for axis in axes] for axes in record.axes]


# ---------------------------------------------------------------------------------------------------------------------
# Row by row
# ---------------------------------------------------------------------------------------------------------------------


def test_code_run_n_times_has_n_values_in_program_order():
    def f(x):
        for i in range(3):
            x = sow(x * 2, "double")
            sow(x + i, f"other{i}")
        return x

    result, records = capture(f)(X)
    equal(result, X * 8)
    assert list(records) == ["double", "other0", "other1", "other2"]
    equal(records["double"].values, (X * 2, X * 4, X * 8))


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, jax.named_scope("n")], ids=["jit", "remat", "named_scope"])
def test_jit_remat_and_named_scope_change_nothing(wrap):
    f = wrap(lambda x: jnp.sin(sow(x * 2, "h")))
    result, records = capture(f)(X)
    equal(result, jnp.sin(X * 2))
    equal(records["h"].value, X * 2)
    assert kinds(records["h"]) == [[]]


def test_remat_records_once_though_computed_twice():
    f = jax.checkpoint(lambda x: jnp.sin(sow(jnp.sin(x), "h")).sum())
    gradient, records = capture(jax.grad(f), grads=True)(X)
    equal(gradient, jnp.cos(jnp.sin(X)) * jnp.cos(X))
    equal(records["h"].values, (jnp.sin(X),))
    equal(records["h"].grads, (jnp.cos(jnp.sin(X)),))


def test_custom_jvp():
    @jax.custom_jvp
    def f(x):
        return sow(x * 2, "h") + 1

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 10))
    result, records = capture(f)(X)
    equal(result, X * 2 + 1)
    equal(records["h"].value, X * 2)
    gradient, records = capture(jax.grad(lambda x: f(x).sum()))(X)
    equal(gradient, jnp.full(3, 10.0))
    equal(records["h"].values, (X * 2,))


def test_custom_vjp():
    @jax.custom_vjp
    def f(x):
        return sow(x * 2, "h") + 1

    f.defvjp(lambda x: (f(x), x), lambda x, ct: (sow(ct * 10, "back"),))
    result, records = capture(f)(X)
    equal(result, X * 2 + 1)
    assert list(records) == ["h"]
    gradient, records = capture(jax.grad(lambda x: f(x).sum()))(X)
    equal(gradient, jnp.full(3, 10.0))
    equal(records["h"].values, (X * 2,))
    equal(records["back"].values, (jnp.full(3, 10.0),))


def test_vmap_puts_the_mapped_axis_first():
    xs = jnp.arange(6.0).reshape(3, 2)
    result, records = capture(jax.vmap(lambda x: sow(x * 2, "h"), in_axes=1, out_axes=1))(xs)
    equal(result, xs * 2)
    equal(records["h"].value, xs.T * 2)
    assert kinds(records["h"]) == [["vmap"]]


def test_scan_has_one_row_per_iteration():
    def f(x):
        return lax.scan(lambda c, row: (sow(c + row, "c"), row), 0.0, x)[0]

    result, records = capture(f)(X)
    equal(result, X.sum())
    equal(records["c"].value, jnp.cumsum(X))
    assert kinds(records["c"]) == [["scan"]]
    assert records["c"].axes[0][0].size == 3


def test_scan_in_reverse_is_in_the_order_in_which_it_ran():
    def f(x):
        return lax.scan(lambda c, row: (sow(c + row, "c"), row), 0.0, x, reverse=True)[0]

    equal(capture(f)(X)[1]["c"].value, jnp.cumsum(X[::-1]))


def test_map_and_fori_loop():
    records = capture(lambda x: lax.map(lambda row: sow(row * 2, "m"), x))(X)[1]
    equal(records["m"].value, X * 2)
    records = capture(lambda x: lax.fori_loop(2, 5, lambda i, c: sow(c * i, "f"), x))(1.0)[1]
    equal(records["f"].value, [2.0, 6.0, 24.0])


def collatz(n):
    step = lambda n: sow(jnp.where(n % 2 == 0, n // 2, 3 * n + 1), "n")
    return lax.while_loop(lambda n: n > 1, step, n)


def test_while_loop_keeps_the_last_iteration_and_counts():
    result, records = capture(collatz)(6)
    assert int(result) == 1
    equal(records["n"].values, (1,))
    equal(records["n"].counts, (8,))
    result, records = capture(collatz)(1)  # no iteration at all
    equal(records["n"].values, (0,))
    equal(records["n"].counts, (0,))


def test_while_loop_keeps_more_iterations_on_request():
    equal(capture(collatz, last=3)(6)[1]["n"].value, [4, 2, 1])
    record = capture(collatz, last=3)(2)[1]["n"]
    equal(record.value[:1], [1])
    equal(record.counts, (1,))


def test_sites_in_the_test_of_a_while_loop():
    f = lambda x: lax.while_loop(lambda c: sow(c, "test") < 3, lambda c: sow(c + 1, "body"), x)
    scanned = lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0]
    for looked in (capture(f), capture(jax.jit(f)), capture(jax.checkpoint(f))):
        result, records = looked(0.0)
        assert list(records) == ["test", "body"]  # program order
        equal((result, records["test"].values, records["body"].values), (3.0, (3.0,), (3.0,)))
        equal((records["test"].counts, records["body"].counts), ((3,), (3,)))
    equal(capture(scanned)(0.0)[1]["test"].values, (jnp.array([3.0]),))
    nested = capture(lambda x: capture(f)(x)[0])
    equal(nested(0.0)[1]["test"].values, (3.0,))


def test_fori_loop_with_bounds_known_when_it_runs_is_a_while_loop():
    f = jax.jit(lambda n, x: lax.fori_loop(0, n, lambda i, c: sow(c * 2, "c"), x))
    record = capture(f)(3, 1.0)[1]["c"]
    equal((record.value, record.counts), (8.0, (3,)))


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


def test_shard_map_gives_a_sharded_global_array_for_what_varies():
    mesh, spec = mesh_of_two(), PartitionSpec("d")

    def per_shard(x, w):
        w = sow(w * 2, "same")
        return sow(x * w, "varies")

    f = jax.jit(jax.shard_map(per_shard, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec))
    xs = jnp.arange(4.0)
    for looked in (capture(f), jax.jit(capture(f)), capture(lambda *args: f(*args))):
        result, records = looked(xs, 3.0)
        equal(result, xs * 6)
        equal(records["varies"].value, (xs * 6).reshape(2, 2))
        assert kinds(records["varies"]) == [["mesh"]]
        assert records["varies"].axes[0][0].name == "d"
        assert len(records["varies"].value.sharding.device_set) == 2
        assert not records["varies"].value.is_fully_replicated
        equal(records["same"].value, 6.0)
        assert kinds(records["same"]) == [[]]


def test_shard_map_gradients():
    mesh, spec = mesh_of_two(), PartitionSpec("d")

    def per_shard(x, w):
        return lax.psum(jnp.sum(sow(x * sow(w * 2, "w"), "h") ** 2), "d")

    f = jax.shard_map(per_shard, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=PartitionSpec())
    xs = jnp.arange(4.0)
    gradient, records = capture(jax.jit(jax.grad(f, argnums=1)), grads=True)(xs, 3.0)
    equal(gradient, 2 * 2 * 6 * jnp.sum(xs**2))
    equal(records["h"].grad, (2 * 6 * xs).reshape(2, 2))
    equal(records["w"].grad, 2 * 6 * jnp.sum(xs**2))


def test_pmap():
    xs = jnp.arange(4.0).reshape(2, 2)
    result, records = capture(jax.pmap(lambda x: sow(x * 2, "h") + 1))(xs)
    equal(result, xs * 2 + 1)
    equal(records["h"].value, xs * 2)
    assert kinds(records["h"]) == [["mesh"]]


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


# ---------------------------------------------------------------------------------------------------------------------
# Differentiation
# ---------------------------------------------------------------------------------------------------------------------


def sine_of_double(x):
    return jnp.sin(sow(x * 2, "h"))


def test_grad_and_value_and_grad():
    gradient, records = capture(jax.grad(lambda x: sine_of_double(x).sum()), grads=True)(X)
    equal(gradient, 2 * jnp.cos(2 * X))
    equal((records["h"].value, records["h"].grad), (2 * X, jnp.cos(2 * X)))
    (_, gradient), records = capture(jax.value_and_grad(lambda x: sine_of_double(x).sum()), grads=True)(X)
    equal(gradient, 2 * jnp.cos(2 * X))
    equal(records["h"].grads, (jnp.cos(2 * X),))


def test_without_a_backward_pass_there_is_no_gradient():
    assert capture(sine_of_double, grads=True)(X)[1]["h"].grads == ()
    assert capture(jax.grad(lambda x: sine_of_double(x).sum()))(X)[1]["h"].grads == ()  # not asked for


def test_a_gradient_that_is_zero_is_zeros():
    def loss(x):
        sow(x * 2, "unused")
        return jnp.sum(sow(x, "used"))

    records = capture(jax.grad(loss), grads=True)(X)[1]
    equal((records["unused"].grads, records["used"].grads), ((jnp.zeros(3),), (jnp.ones(3),)))


def test_one_jitted_function_called_twice_and_differentiated_once():
    f = jax.jit(lambda x: jnp.sum(sow(x * 2, "h") ** 2))
    stopped_after = lambda x: lax.stop_gradient(f(x * 10)) + f(x)
    stopped_before = lambda x: f(lax.stop_gradient(x * 10)) + f(x)
    for wrap in (lambda f: f, jax.jit):
        record = capture(wrap(jax.grad(stopped_after)), grads=True)(X)[1]["h"]
        equal(record.values, (X * 20, X * 2))
        equal(record.grads, (jnp.zeros(3), X * 4))
        record = capture(wrap(jax.grad(stopped_before)), grads=True)(X)[1]["h"]
        equal(record.values, (X * 20, X * 2))
        assert record.grads[0] is None  # no backward pass concerns that call
        equal(record.grads[1], X * 4)


def test_pullbacks_called_in_the_order_of_their_creation():
    f = jax.jit(lambda x: sow(x * 2, "h") ** 2)

    def program(x):
        _, pull_a = jax.vjp(f, x)
        _, pull_b = jax.vjp(f, x * 10)
        return pull_a(jnp.ones(3)), pull_b(jnp.ones(3))

    for wrap in (lambda f: f, jax.jit):
        record = capture(wrap(program), grads=True)(X)[1]["h"]
        equal(record.values, (X * 2, X * 20))
        equal(record.grads, (X * 4, X * 40))


def test_a_pullback_called_twice_adds_up():
    def program(x):
        _, pull = jax.vjp(sine_of_double, x)
        return pull(jnp.ones(3)), pull(2 * jnp.ones(3))

    equal(capture(program, grads=True)(X)[1]["h"].grads, (3 * jnp.cos(2 * X),))


def test_a_pullback_mapped_over_cotangents_has_one_row_for_each():
    cotangents = jnp.arange(6.0).reshape(2, 3)
    want = cotangents * jnp.cos(2 * X)
    through_map = lambda x: (lambda pull: lax.map(pull, cotangents))(jax.vjp(sine_of_double, x)[1])
    through_vmap = lambda x: (lambda pull: jax.vmap(pull)(cotangents))(jax.vjp(sine_of_double, x)[1])
    equal(capture(through_map, grads=True)(X)[1]["h"].grads, (want,))
    equal(capture(through_vmap, grads=True)(X)[1]["h"].grads, (want,))


@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_of_a_scan_is_aligned_with_its_iterations(reverse):
    def loss(x):
        return lax.scan(lambda c, row: (jnp.sin(sow(c + row, "c")), None), jnp.zeros(()), x, reverse=reverse)[0]

    def by_hand(perturbations, x):
        carry = 0.0
        for i, row in enumerate(x[::-1] if reverse else x):
            carry = jnp.sin(carry + row + perturbations[i])
        return carry

    want = jax.grad(by_hand)(jnp.zeros(3), X)
    for wrap in (lambda f: f, jax.jit):
        equal(capture(wrap(jax.grad(loss)), grads=True)(X)[1]["c"].grad, want)


@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_taken_inside_a_scan_body_is_not_turned_round(reverse):
    def f(x):
        step = lambda c, row: (c, jax.grad(lambda y: jnp.sin(sow(y * 2, "h")))(row))
        return lax.scan(step, 0.0, x, reverse=reverse)[1]

    record = capture(f, grads=True)(X)[1]["h"]
    order = X[::-1] if reverse else X
    equal((record.value, record.grad), (order * 2, jnp.cos(order * 2)))


def test_a_value_that_is_the_same_in_every_iteration_has_a_row_for_each():
    def loss(w, x):
        return lax.scan(lambda c, row: (c + row * sow(w * 2, "w"), None), 0.0, x)[0]

    for f in (loss, jax.jit(loss), jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.checkpoint(loss))):
        record = capture(f, grads=True)(1.5, X)[1]["w"]
        equal(record.value, jnp.full(3, 3.0))
        assert kinds(record) == [["scan"]]
    equal(capture(jax.grad(loss), grads=True)(1.5, X)[1]["w"].grad, X)


def test_gradient_of_a_scan_inside_a_scan_body():
    def inner(y):
        return lax.scan(lambda c, row: (jnp.sin(sow(c + row, "c")), None), jnp.zeros(()), y + jnp.arange(3.0))[0]

    f = lambda x: lax.map(jax.grad(inner), x)
    rows = [capture(jax.grad(inner), grads=True)(x)[1]["c"].grad for x in X]
    equal(capture(f, grads=True)(X)[1]["c"].grad, jnp.stack(rows))


def test_gradient_in_a_cond():
    def loss(x):
        return lax.cond(x > 0, lambda x: sow(x * 2, "yes") ** 2, lambda x: sow(x * 3, "no") ** 3, x)

    for wrap in (lambda f: f, jax.jit):
        _, records = capture(wrap(jax.grad(loss)), grads=True)(1.5)
        equal((records["yes"].grad, records["no"].grad), (6.0, 0.0))


def test_jvp_and_linearize_see_the_value():
    _, records = capture(lambda x: jax.jvp(sine_of_double, (x,), (x,)))(X)
    equal(records["h"].values, (X * 2,))
    _, records = capture(lambda x: jax.linearize(sine_of_double, x)[1](x))(X)
    equal(records["h"].values, (X * 2,))


def test_gradient_of_a_program_with_a_jvp_inside():
    def loss(x):
        return jax.jvp(sine_of_double, (x,), (jnp.ones(3),))[1].sum()  # 2 cos(h)

    record = capture(jax.grad(loss), grads=True)(X)[1]["h"]
    equal((record.value, record.grads), (X * 2, (-2 * jnp.sin(2 * X),)))


def test_jacrev_jacfwd_and_hessian():
    jacobian, records = capture(jax.jacrev(sine_of_double), grads=True)(X)
    equal(jacobian, jnp.diag(2 * jnp.cos(2 * X)))
    equal((records["h"].values, records["h"].grads), ((X * 2,), (jnp.diag(jnp.cos(2 * X)),)))
    jacobian, records = capture(jax.jacfwd(sine_of_double), grads=True)(X)
    equal(jacobian, jnp.diag(2 * jnp.cos(2 * X)))
    assert records["h"].grads == ()
    hessian, records = capture(jax.hessian(lambda x: sine_of_double(x).sum()), grads=True)(X)
    equal(hessian, jnp.diag(-4 * jnp.sin(2 * X)))
    equal(records["h"].values, (X * 2,))
    equal(records["h"].grads, (jnp.cos(2 * X)[None],))  # one row per output, as in jacrev


def test_second_order_gradients_through_remat():
    plain = lambda x: jnp.sin(sow(x * 2, "h"))
    for f in (plain, jax.checkpoint(plain)):
        record = capture(jax.grad(lambda x: jax.grad(f)(x) + f(x)), grads=True)(0.3)[1]["h"]
        first, second = (record.gradients(order) for order in (1, 2))
        equal((record.values, first), ((0.6, 0.6), (jnp.cos(0.6), jnp.cos(0.6))))
        equal(second[0], -2 * jnp.sin(0.6))


def test_a_numpy_constant_in_a_jitted_function_in_loops_and_branches():
    w = np.array([1.0, 2.0, 3.0], np.float32)
    f = jax.jit(lambda x: jnp.sin(sow(x * w, "h")))
    scanned = lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0].sum()
    equal(capture(jax.grad(scanned), grads=True)(X)[1]["h"].grad, jnp.cos(X * w)[None])
    branched = lambda x: lax.cond(x.sum() > 0, f, lambda x: x, x)
    equal(capture(jax.vmap(branched))(jnp.stack([X, -X]))[1]["h"].value, jnp.stack([X * w, jnp.zeros(3)]))


def test_second_order_gradients_are_told_apart():
    cube = lambda x: sow(x * 2, "h") ** 3
    second = jax.grad(lambda x: jax.grad(cube)(x))  # (2x)^3: 24 x^2, 48 x
    result, records = capture(second, grads=True)(1.5)
    equal(result, 48 * 1.5)
    equal(records["h"].gradients(1), (3 * 9.0,))
    equal(records["h"].gradients(2), (2 * 6 * 3.0,))  # d/dh of 2 * 3 h^2


def test_linear_transpose_has_a_cotangent_and_no_value():
    f = lambda x: jax.linear_transpose(lambda y: 3 * sow(y * 2, "h"), x)(x)
    (result,), records = capture(f, grads=True)(X)
    equal(result, X * 6)
    assert records["h"].values == ()
    equal(records["h"].grads, (X * 3,))


def test_an_integer_in_a_tree_has_gradient_zero():
    def loss(x):
        tree = sow({"x": x * 2, "n": jnp.arange(3), "s": "text"}, "tree")
        return jnp.sum(tree["x"] * tree["n"])

    gradient = capture(jax.grad(loss), grads=True)(X)[1]["tree"].grad
    equal({k: gradient[k] for k in "xn"}, {"x": jnp.arange(3.0), "n": jnp.zeros(3, int)})
    assert gradient["s"] == "text"


# ---------------------------------------------------------------------------------------------------------------------
# Functions with their own derivatives
# ---------------------------------------------------------------------------------------------------------------------


def make_custom_vjp():
    @jax.custom_vjp
    def f(x):
        return sow(x * 2, "h")

    f.defvjp(lambda x: (f(x), None), lambda _, ct: (ct * 100,))
    return f


def make_custom_jvp():
    @jax.custom_jvp
    def f(x):
        return sow(x * 2, "h")

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0] * 100))
    return f


@pytest.mark.parametrize("make", [make_custom_vjp, make_custom_jvp])
def test_the_users_rule_survives_differentiation_from_outside(make):
    def loss(x):
        return make()(x).sum()

    outside = [
        jax.grad(capture(loss), has_aux=True),
        jax.grad(jax.jit(capture(loss)), has_aux=True),
        jax.jit(jax.grad(capture(loss), has_aux=True)),
        jax.grad(capture(jax.jit(loss)), has_aux=True),
        jax.grad(capture(lambda x: jax.jit(loss)(x)), has_aux=True),
        jax.grad(capture(jax.checkpoint(loss)), has_aux=True),
    ]
    for differentiated in outside:
        gradient, records = differentiated(X)
        equal(gradient, jnp.full(3, 100.0))
        equal(records["h"].values, (X * 2,))


def test_the_users_rule_survives_in_loops_and_branches():
    for make in (make_custom_vjp, make_custom_jvp):
        f = make()
        scanned = lambda x: lax.scan(lambda c, row: (c + f(row), None), 0.0, x)[0]
        gradient, records = jax.grad(jax.jit(capture(scanned)), has_aux=True)(X)
        equal((gradient, records["h"].value), (jnp.full(3, 100.0), X * 2))
        branched = lambda x: lax.cond(x > 0, f, lambda x: x, x)
        gradient, records = jax.grad(jax.jit(capture(branched)), has_aux=True)(1.5)
        equal((gradient, records["h"].value), (100.0, 3.0))
        mapped = lambda x: jax.vmap(f)(x).sum()
        gradient, records = jax.grad(jax.jit(capture(mapped)), has_aux=True)(X)
        equal((gradient, records["h"].value), (jnp.full(3, 100.0), X * 2))


def test_a_residual_that_is_an_input():
    """JAX passes such a residual by the position of the input: a rewritten call must not move it."""

    @jax.custom_vjp
    def f(x):
        return sow(x * 2, "h")

    f.defvjp(lambda x: (f(x), x), lambda x, ct: (jnp.cos(x) * ct,))
    losses = [
        lambda x: f(x),
        lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
        lambda x: lax.cond(x.sum() > 0, f, lambda x: x, x),
        lambda x: jax.checkpoint(f)(x),
        lambda x: jax.vmap(f)(x),
    ]
    for loss in losses:
        for grads in (False, True):
            gradient, records = capture(jax.grad(lambda x: loss(x).sum()), grads=grads)(X)
            equal(gradient, jnp.cos(X))
            equal(jnp.squeeze(records["h"].value), X * 2)


def test_sites_in_the_rules_themselves():
    @jax.custom_vjp
    def f(x):
        return sow(x * 2, "plain")

    f.defvjp(lambda x: (sow(x * 2, "forward"), x), lambda x, ct: (sow(ct * x, "backward"),))
    for wrap in (lambda f: f, jax.jit):
        _, records = capture(wrap(jax.grad(lambda x: f(x).sum())))(X)
        assert list(records) == ["forward", "backward"]
        equal((records["forward"].value, records["backward"].value), (X * 2, X))

    @jax.custom_jvp
    def g(x):
        return x * 2

    @g.defjvp
    def rule(primals, tangents):
        return g(*primals), sow(primals[0] * 3, "rule") * tangents[0]

    for wrap in (lambda f: f, jax.jit):
        _, records = capture(wrap(jax.grad(lambda x: g(x).sum())))(X)
        equal(records["rule"].values, (X * 3,))


def test_a_site_only_in_a_rule_that_runs_outside_the_capture_is_an_error():
    @jax.custom_vjp
    def f(x):
        return x * 2

    f.defvjp(lambda x: (sow(x * 2, "forward"), x), lambda x, ct: (ct,))
    with pytest.raises(sonde.errors.CaptureError, match=r"'forward' \(.*test_transforms.py:\d+\).*custom_vjp"):
        jax.grad(jax.jit(capture(lambda x: f(x).sum())), has_aux=True)(X)


# ---------------------------------------------------------------------------------------------------------------------
# vmap
# ---------------------------------------------------------------------------------------------------------------------


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


def test_vmap_of_while_with_a_leaf_of_the_predicates_shape():
    def f(n):
        body = lambda s: (s[0] + 1, sow({"a": s[1] * 1, "k": jnp.arange(3)}, "tree")["a"])
        return lax.while_loop(lambda s: s[0] < s[1], body, (0, n))[1]

    value = capture(jax.vmap(f))(jnp.array([1, 0, 3]))[1]["tree"].value
    ran = jnp.array([[1], [0], [1]])
    equal(value, {"a": jnp.array([1, 0, 3]), "k": jnp.arange(3) * ran})


def test_vmap_of_while_with_a_mapped_predicate():
    starts = jnp.array([6, 1, 2, 3])
    for last in (1, 2):
        record = capture(jax.vmap(collatz), last=last)(starts)[1]["n"]
        equal(record.counts, (jnp.array([8, 0, 1, 7]),))
        if last == 1:
            equal(record.value, [1, 0, 1, 1])
            assert kinds(record) == [["vmap"]]
        else:
            equal(record.value[:, 0], [2, 1])
            equal(record.value[:, 3], [2, 1])
            equal(record.value[0, 2], 1)
            assert kinds(record) == [["while", "vmap"]]


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


# ---------------------------------------------------------------------------------------------------------------------
# jit and its options
# ---------------------------------------------------------------------------------------------------------------------


def test_functions_compiled_before_the_capture():
    f = jax.jit(lambda x: sow(x * 2, "h") + 1)
    equal(f(X), X * 2 + 1)
    equal(capture(f)(X)[1]["h"].value, X * 2)
    equal(capture(lambda x: f(x) + f(x + 1))(X)[1]["h"].values, (X * 2, X * 2 + 2))
    equal(f(X), X * 2 + 1)


def test_one_jitted_function_under_two_scopes():
    f = jax.jit(lambda x: sow(x * 2, "h"))

    def g(x):
        with sonde.scope("a"):
            x = f(x)
        with sonde.scope("b"), sonde.scope("c"):
            return f(x)

    for wrap in (lambda g: g, jax.jit):
        _, records = capture(wrap(g))(X)
        assert list(records) == ["a/h", "b/c/h"]
        equal((records["a/h"].value, records["b/c/h"].value), (X * 2, X * 4))


def test_static_arguments():
    @functools.partial(jax.jit, static_argnums=(1,), static_argnames=("kind",))
    def f(x, n, *, kind):
        assert isinstance(n, int)
        return sow(x * n, kind)

    for looked in (capture(f), capture(lambda x, n, kind: f(x, n, kind=kind))):
        for n, kind in ((2, "a"), (3, "b")):
            result, records = looked(X, n, kind=kind)
            equal((result, records[kind].value), (X * n, X * n))
            assert list(records) == [kind]


def test_donated_buffers_are_donated():
    f = jax.jit(lambda x, y: sow(x * 2, "h") + y, donate_argnums=(0,))
    for looked in (capture(f), capture(lambda x, y: f(x, y))):
        x = jnp.arange(4.0) + 0
        result, records = looked(x, 1.0)
        assert x.is_deleted()
        equal((result, records["h"].value), (jnp.arange(4.0) * 2 + 1, jnp.arange(4.0) * 2))


def test_shardings():
    sharded = NamedSharding(mesh_of_two(), PartitionSpec("d"))
    replicated = NamedSharding(mesh_of_two(), PartitionSpec())
    f = jax.jit(lambda x: sow(x * 2, "h") + 1, in_shardings=sharded, out_shardings=replicated)
    g = jax.jit(lambda x: sow(x * 2, "h") + 1, in_shardings=replicated, out_shardings=sharded)
    for looked in (capture(f), capture(lambda x: f(x))):
        result, records = looked(jnp.arange(4.0))
        assert result.sharding.is_fully_replicated
        assert len(result.sharding.device_set) == 2
        equal(records["h"].value, jnp.arange(4.0) * 2)
    for looked in (capture(g), capture(lambda x: g(x))):
        result, records = looked(jnp.arange(4.0))
        assert result.sharding.is_equivalent_to(sharded, 1)
        equal(records["h"].value, jnp.arange(4.0) * 2)


@pytest.mark.parametrize("option", ["inline", "keep_unused"])
def test_inline_and_keep_unused(option):
    options: dict[str, Any] = {option: True}
    f = jax.jit(lambda x, unused: sow(x * 2, "h") + 1, **options)
    for looked in (capture(f), capture(lambda x, y: f(x, y)), jax.jit(capture(f))):
        result, records = looked(X, 7.0)
        equal((result, records["h"].values), (X * 2 + 1, (X * 2,)))
    plain, looked = (str(jax.make_jaxpr(g)(X)) for g in (lambda x: f(x, x), capture(lambda x: f(x, x))))
    assert plain.count("jit[") == looked.count("jit[")
    assert plain.count("inline=True") == looked.count("inline=True")
    assert plain.count("keep_unused=True") == looked.count("keep_unused=True")


def test_jit_inside_jit_inside_jit():
    f = lambda x: x
    for i in range(4):
        f = jax.jit(lambda x, f=f, i=i: sow(f(x) * 2, f"h{i}"))
    _, records = capture(f)(X)
    equal([records[f"h{i}"].value for i in range(4)], [X * 2 ** (i + 1) for i in range(4)])


# ---------------------------------------------------------------------------------------------------------------------
# What can be captured
# ---------------------------------------------------------------------------------------------------------------------


class Model:
    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return sow(x * self.w, "call")

    def method(self, x, *, plus):
        return sow(x * self.w, "method") + plus

    @classmethod
    def of_class(cls, x):
        return sow(x, "class")

    @staticmethod
    def static(x):
        return sow(x, "static")


def test_closures_partials_methods_and_callable_objects():
    model, w = Model(2.0), jnp.array(3.0)

    def closure(x):
        return sow(x * w, "closure")

    wanted = {
        "closure": (closure, X * 3),
        "call": (model, X * 2),
        "method": (functools.partial(model.method, plus=1), X * 2),
        "class": (model.of_class, X),
        "static": (Model.static, X),
    }
    for name, (f, want) in wanted.items():
        for looked in (capture(f), jax.jit(capture(f)), capture(jax.jit(f)), capture(functools.partial(f))):
            equal(looked(X)[1][name].values, (want,))
    result, records = capture(model.method)(X, plus=5)
    equal((result, records["method"].value), (X * 2 + 5, X * 2))


def test_a_jitted_function_that_closes_over_an_array():
    w = jnp.arange(3.0)
    f = jax.jit(lambda x: sow(x * w, "h"))
    equal(capture(f)(X)[1]["h"].value, X * w)
    scanned = jax.jit(lambda x: lax.scan(lambda c, i: (sow(c * w, "c"), sow(w[i], "w")), x, jnp.arange(2)))
    _, records = capture(scanned)(X)
    equal((records["c"].value, records["w"].value), (jnp.stack([X * w, X * w * w]), w[:2]))


def test_capture_inside_of_transforms():
    inside = lambda x: capture(lambda x: jnp.sum(sow(x * 2, "h") ** 2))(x)
    want = (jnp.sum(4 * X**2), X * 2)
    for looked in (inside, jax.jit(inside), jax.checkpoint(inside)):
        result, records = looked(X)
        equal((result, records["h"].value), want)
    (value, records), gradient = jax.value_and_grad(inside, has_aux=True)(X)
    equal((value, records["h"].value, gradient), (*want, 8 * X))
    _, records = jax.vmap(inside)(jnp.stack([X, X + 1]))
    equal(records["h"].value, jnp.stack([X, X + 1]) * 2)
    _, (_, records) = lax.scan(lambda c, x: (c, inside(x)), 0.0, jnp.stack([X, X + 1]))
    equal(records["h"].value, jnp.stack([X, X + 1]) * 2)


def test_a_gradient_through_the_records_themselves():
    def loss(x):
        _, records = capture(lambda x: sow(x**2, "h"))(x)
        return jnp.sum(records["h"].value * 3)

    equal(jax.grad(loss)(X), 6 * X)
    equal(jax.jit(jax.grad(loss))(X), 6 * X)
