"""Functions whose derivative rule does not run the function: the values at its sites are recorded anyway."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.comparing import equal

import sonde
from sonde import capture, sow


def function(x: Any, y: Any) -> Any:
    return sonde.sow(jnp.sin(x) * y, "h") * 2


def custom_vjp(calls: bool) -> Callable:
    f = jax.custom_vjp(function)
    forward = function if calls else lambda x, y: jnp.sin(x) * y * 2
    f.defvjp(
        lambda x, y: (forward(x, y), (x, y)),
        lambda res, ct: (jnp.cos(res[0]) * res[1] * 2 * ct, jnp.sin(res[0]) * 2 * ct),
    )
    return f


def custom_jvp(calls: bool) -> Callable:
    f = jax.custom_jvp(function)
    forward = function if calls else lambda x, y: jnp.sin(x) * y * 2

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (dx, dy) = primals, tangents
        return forward(x, y), jnp.cos(x) * y * 2 * dx + jnp.sin(x) * 2 * dy

    return f


AROUND = {
    "nothing": lambda f: f,
    "jit": jax.jit,
    "scan": lambda f: lambda x, y: lax.scan(lambda c, _: (f(c, y) * 0.1, None), x, None, length=3)[0],
    "vmap": lambda f: lambda x, y: jnp.sum(jax.vmap(f, (0, None))(jnp.stack([x, x + 1]), y)),
    "remat": jax.checkpoint,
    "cond": lambda f: lambda x, y: lax.cond(x > 0, f, lambda x, y: x, x, y),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("calls", [False, True])
@pytest.mark.parametrize("make", [custom_vjp, custom_jvp])
@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_values_inside_a_function_that_is_differentiated_outside_of_the_capture(
    make: Callable, calls: bool, around: Callable
) -> None:
    x, y = jnp.float32(0.3), jnp.float32(2)
    f = around(make(calls))
    expected = sonde.capture(f)(x, y)[1]["h"].value
    captured = jax.grad(sonde.capture(f), has_aux=True)
    for program in (captured, jax.jit(captured)):
        gradient, records = program(x, y)
        np.testing.assert_allclose(gradient, jax.grad(f)(x, y), rtol=1e-6)
        np.testing.assert_allclose(records["h"].value, expected, rtol=1e-6)


X = jnp.array([0.5, -1.0, 2.0])


@pytest.mark.parametrize("make", [custom_vjp, custom_jvp])
@pytest.mark.parametrize("calls", [True, False])
def test_captures_inside_one_another_and_differentiated_from_outside(make, calls):
    f, x = make(calls), jnp.float32(0.5)

    def twice(x):
        return capture(lambda x: capture(lambda x: f(x, x) * 3)(x))(x)

    def loss(x):
        (out, inner), outer = twice(x)
        return out, (inner, outer)

    gradient, (inner, _) = jax.grad(loss, has_aux=True)(x)
    np.testing.assert_allclose(gradient, 6 * (jnp.cos(x) * x + jnp.sin(x)), rtol=1e-6)
    np.testing.assert_allclose(inner["h"].value, jnp.sin(x) * x, rtol=1e-6)
    np.testing.assert_allclose(jax.hessian(lambda x: loss(x)[0])(x), 6 * (2 * jnp.cos(x) - jnp.sin(x) * x), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda x: jax.vmap(lambda x: loss(x)[0])(x).sum())(x[None])[0], gradient)


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
    with pytest.raises(sonde.errors.CaptureError, match=r"'forward' \(.*test_custom.py:\d+\).*custom_vjp"):
        jax.grad(jax.jit(capture(lambda x: f(x).sum())), has_aux=True)(X)


def test_a_sown_tangent_has_no_value_in_reverse_mode_and_its_cotangent_as_gradient():
    @jax.custom_jvp
    def square(x):
        return x**2

    @square.defjvp
    def _rule(primals, tangents):
        (x,), (dx,) = primals, tangents
        return square(x), 2 * x * sow(dx, "dx")

    x = jnp.arange(3.0)
    for wrap in (lambda f: f, jax.jit):
        _, records = capture(wrap(jax.grad(lambda x: square(x).sum())), grads=True)(x)
        assert records["dx"].values == ()
        np.testing.assert_array_equal(records["dx"].grad, 2 * x)
    _, records = capture(lambda x: jax.jvp(square, (x,), (x + 1,)))(x)
    np.testing.assert_array_equal(records["dx"].value, x + 1)


def custom_jvp_doubling(f):
    marked = jax.custom_jvp(f)
    marked.defjvp(lambda primals, tangents: (marked(*primals), tangents[0] * 2))
    return marked


def custom_vjp_doubling(f):
    marked = jax.custom_vjp(f)
    marked.defvjp(lambda h: (marked(h), None), lambda _, ct: (ct * 2,))
    return marked


@pytest.mark.parametrize("custom", [lambda f: f, custom_jvp_doubling, custom_vjp_doubling])
def test_what_an_edit_of_some_rows_marks_in_a_custom_function_is_in_these_rows_alone(custom):
    marked = custom(lambda h: sow(h * 2, "inner"))

    def f(x):
        with sonde.scope("blocks/*"):
            return lax.scan(lambda c, _: (sow(c + 1, "h"), None), x, length=3)[0]

    for wrap in (lambda g: g, jax.grad):
        _, records = capture(wrap(sonde.edit(f, {"blocks/1/h": lambda h: marked(h)})))(1.0)
        assert list(records) == ["blocks/0/h", "blocks/1/h/inner", "blocks/1/h", "blocks/2/h"]
