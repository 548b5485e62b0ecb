"""Programs whose sites outlive their capture, and edits of values that do not vary."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from tests.core.comparing import equal

import sonde
from sonde import capture, sow


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_pullback_that_leaves_a_capture_works(wrap: Any) -> None:
    def f(x: Any) -> Any:
        return jax.vjp(lambda x: sonde.sow(jnp.sin(x), "h") ** 2, x)

    (y, pull), _ = sonde.capture(f, grads=True)(0.3)
    np.testing.assert_allclose(y, np.sin(0.3) ** 2, rtol=1e-6)
    (gradient,) = wrap(pull)(1.0)
    np.testing.assert_allclose(gradient, 2 * np.sin(0.3) * np.cos(0.3), rtol=1e-6)
    np.testing.assert_allclose(jax.vmap(pull)(jnp.ones(2))[0], [gradient] * 2, rtol=1e-6)


def test_a_program_that_was_traced_in_a_capture_runs_outside_of_it() -> None:
    def f(x: Any) -> Any:
        return jax.linearize(lambda x: sonde.sow(jnp.sin(x), "h") ** 2, x), jax.make_jaxpr(
            lambda x: sonde.sow(x * 2, "h") + 1
        )(x)

    ((_, tangent), jaxpr), _ = sonde.capture(f, grads=True)(0.3)
    np.testing.assert_allclose(tangent(1.0), 2 * np.sin(0.3) * np.cos(0.3), rtol=1e-6)
    assert jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, 1.0) == [3.0]


@pytest.mark.parametrize("axes", [((None, 0), (0, None)), ((0, None), (None, 0))])
@pytest.mark.parametrize("values", [2, 3])
def test_an_edit_that_changes_nothing_under_two_maps_around_a_cond(axes: Any, values: int) -> None:
    def f(p: Any, x: Any) -> Any:
        return lax.cond(p, lambda x: sonde.sow(x * 2, "a"), lambda x: sonde.sow(x * 3, "b"), x)

    program = jax.vmap(jax.vmap(f, axes[0]), axes[1])
    p, x = jnp.array([True, False]), jnp.arange(1.0, values + 1)
    np.testing.assert_array_equal(sonde.edit(program, {"**": lambda v: v})(p, x), program(p, x))


X = jnp.array([0.5, -1.0, 2.0])


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


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_parts_without_a_gradient_stay_symbolic_zeros(wrap: Any) -> None:
    """A rule that is told which of its cotangents are zero is told the same; the records have zeros there."""
    zeros = []

    @jax.custom_vjp
    def f(x: Any) -> Any:
        return x + 1, x + 2, x * 3

    def backward(_: None, cotangents: Any) -> Any:
        zeros.append([isinstance(c, jax.custom_derivatives.SymbolicZero) for c in cotangents])
        return (cotangents[0] + 3 * cotangents[2],)

    f.defvjp(lambda x: (f(x.value), None), backward, symbolic_zeros=True)

    def loss(x: Any) -> Any:
        a, _, c = sow(f(x), "parts")
        return (2 * a + c).sum()

    gradient, records = capture(wrap(jax.grad(loss)), grads=True)(X)
    equal(gradient, jnp.full(3, 5.0))
    equal(records["parts"].grad, (jnp.full(3, 2.0), jnp.zeros(3), jnp.ones(3)))
    assert zeros == [[False, True, False]]


def test_python_numbers_that_are_differentiated_stay_python_numbers() -> None:
    kinds = []

    def f(x: Any) -> Any:
        x = sow(x, "x")
        kinds.append(type(getattr(x, "primal", x)))  # a new value that is an array has no tangent
        return x

    (value, tangent), records = capture(lambda: jax.jvp(f, (2.0,), (3.0,)), grads=True)()
    assert kinds == [float] and (type(value), type(tangent)) == (float, float)
    assert (value, tangent, float(records["x"].value)) == (2.0, 3.0, 2.0)
    edited, _ = sonde.edit(lambda: jax.jvp(f, (2.0,), (3.0,)), {"x": 5.0})()
    assert edited == 5.0


def _primitive_that_needs_cotangents() -> Any:
    """The identity, as a primitive with one result whose transpose works on arrays alone."""
    primitive: Any = Primitive("needs_cotangents")
    primitive.def_impl(lambda x: x)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, lambda ctx, x: [x])
    batching.primitive_batchers[primitive] = lambda args, dims: (primitive.bind(*args), dims[0])
    ad.primitive_jvps[primitive] = lambda xs, tangents: (primitive.bind(*xs), primitive.bind(*tangents))
    ad.primitive_transposes[primitive] = lambda cotangent, x: [primitive.bind(jnp.asarray(cotangent))]
    return primitive


_needs_cotangents = _primitive_that_needs_cotangents()


def _sum_over_a_scan(f: Any) -> Any:
    return lambda x: lax.scan(lambda total, x: (total + f(x), None), 0.0, x)[0]


def _or_a_sum(f: Any) -> Any:
    return lambda x: lax.cond(x[0] > 0, f, jnp.sum, x)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint, jax.vmap, _sum_over_a_scan, _or_a_sum])
def test_what_leads_to_a_part_that_is_not_used_is_not_transposed(wrap: Any) -> None:
    """A tuple of two arrays of which the program uses one: dead code stays dead, as without the site."""

    def f(x: Any) -> Any:
        _, used, _ = sow((_needs_cotangents.bind(x * 2), jnp.sin(x), jnp.cos(_needs_cotangents.bind(x))), "three")
        return jnp.sum(used * 3)

    gradient, records = capture(jax.grad(lambda x: jnp.sum(wrap(f)(x))), grads=True)(X)
    equal(gradient, 3 * jnp.cos(X))
    equal(records["three"].grad, (0 * X, 0 * X + 3, 0 * X))
