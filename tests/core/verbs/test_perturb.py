"""Adding to values at sites: the gradient with respect to what is added is the gradient at the site."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde
from sonde import perturb, sow, with_perturbations, zero_perturbations
from sonde.errors import EditError, NoSuchSiteError

X = jnp.arange(3.0) + 0.5


def loss(x):
    h = perturb(jnp.sin(x), "h")
    return jnp.sum(h**2)


def test_zeros_are_shaped_like_the_values():
    zeros = zero_perturbations(loss)(X)
    assert list(zeros) == ["h"]
    np.testing.assert_array_equal(zeros["h"], jnp.zeros(3))


def test_only_perturbed_sites_unless_asked():
    def f(x):
        return sow(perturb(x, "p") * 2, "s")

    assert list(zero_perturbations(f)(X)) == ["p"]
    assert list(zero_perturbations(f, "s")(X)) == ["s"]


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint], ids=["eager", "jit", "remat"])
def test_gradient_at_the_site(around):
    grads = jax.grad(with_perturbations(around(loss)))(zero_perturbations(loss)(X), X)
    np.testing.assert_allclose(grads["h"], 2 * jnp.sin(X), rtol=1e-6)


def test_agrees_with_captured_gradients_in_a_scan():
    def f(x):
        def body(c, t):
            return perturb(jnp.sin(c * t), "c"), None

        return lax.scan(body, x, jnp.arange(1.0, 5.0))[0].sum()

    zeros = zero_perturbations(f)(X)
    assert zeros["c"].shape == (4, 3)
    grads = jax.grad(with_perturbations(f))(zeros, X)
    _, records = sonde.capture(jax.grad(f), grads=True)(X)
    np.testing.assert_allclose(grads["c"], records["c"].grad, rtol=1e-5)


def test_reversed_scan_takes_slices_in_the_order_of_running():
    def f(x):
        return lax.scan(lambda c, t: (perturb(c * 2, "c"), None), x, jnp.arange(3.0), reverse=True)[0]

    deltas = {"c": jnp.array([[100.0], [10.0], [1.0]]) * jnp.ones(3)}
    np.testing.assert_allclose(with_perturbations(f)(deltas, X), ((X * 2 + 100) * 2 + 10) * 2 + 1, rtol=1e-6)


def test_without_the_loop_axis_the_same_goes_into_every_iteration():
    def f(x):
        return lax.scan(lambda c, _: (perturb(c, "c"), None), x, length=4)[0]

    np.testing.assert_allclose(with_perturbations(f)({"c": jnp.ones(3)}, X), X + 4, rtol=1e-6)


def test_vmap_has_one_delta_per_example():
    f = jax.vmap(lambda x: jnp.sum(perturb(x, "h") ** 2))
    xs = jnp.stack([X, X * 2])
    zeros = zero_perturbations(f)(xs)
    assert zeros["h"].shape == (2, 3)
    grads = jax.grad(lambda d: with_perturbations(f)(d, xs).sum())(zeros)
    np.testing.assert_allclose(grads["h"], 2 * xs, rtol=1e-6)


def test_a_site_met_twice_gets_the_same_twice():
    def f(x):
        return perturb(perturb(x, "h") * 2, "h")

    np.testing.assert_allclose(with_perturbations(f)({"h": jnp.ones(3)}, X), (X + 1) * 2 + 1, rtol=1e-6)


def test_pytrees_leave_out_what_cannot_be_differentiated():
    def f(x):
        p = perturb({"x": x, "n": jnp.arange(3), "name": "p"}, "p")
        return jnp.sum(p["x"] * p["n"])

    zeros = zero_perturbations(f)(X)
    assert zeros["p"]["n"] is None and zeros["p"]["name"] is None
    np.testing.assert_array_equal(jax.grad(with_perturbations(f))(zeros, X)["p"]["x"], jnp.arange(3.0))


def test_what_does_not_fit():
    with pytest.raises(EditError, match=r"perturbation of 'h' .*: expected float32\[3\], got float32\[2\]"):
        with_perturbations(loss)({"h": jnp.ones(2)}, X)
    with pytest.raises(EditError, match="expected the structure"):
        with_perturbations(loss)({"h": (X, X)}, X)
    with pytest.raises(NoSuchSiteError, match="'g' matches none of the program's 1 site; it is 'h'"):
        with_perturbations(loss)({"g": X}, X)


def test_without_anybody_looking_it_is_the_identity():
    assert str(jax.make_jaxpr(loss)(X)) == str(jax.make_jaxpr(lambda x: jnp.sum(jnp.sin(x) ** 2))(X))


def test_a_perturbation_of_another_structure():
    f = lambda x: sonde.perturb({"a": x, "b": x * 2}, "h")["a"].sum()
    with pytest.raises(EditError, match=r"perturbation of 'h' \(.*test_perturb.py:\d+\): expected the structure"):
        sonde.with_perturbations(f)({"h": {"a": jnp.ones(2)}}, jnp.ones(2))


def test_single_rows_of_a_loop_with_a_name():
    def f(x):
        with sonde.scope("blocks/*"):
            return jax.lax.scan(lambda c, _: (sonde.perturb(c * 2, "h"), None), x, length=3)[0]

    assert (
        float(sonde.with_perturbations(f)({"blocks/1/h": jnp.float32(0.5)}, jnp.float32(1.0))) == (1 * 2 * 2 + 0.5) * 2
    )
    gradient = jax.grad(lambda d: sonde.with_perturbations(f)(d, jnp.float32(1.0)))({"blocks/0/h": jnp.float32(0.0)})
    assert float(gradient["blocks/0/h"]) == 4.0


def test_a_program_without_values_to_perturb_says_what_to_do():
    with pytest.raises(
        NoSuchSiteError, match=r"no value is marked with sonde.perturb: .* the program has the sites: 'h', 'g'"
    ):
        sonde.zero_perturbations(lambda x: sonde.sow(sonde.sow(x, "h"), "g"))(1.0)
