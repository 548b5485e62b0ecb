"""Contributions, against derivatives worked out by hand."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.tools.models import HIDDEN, V, X, every_face, forward

from sonde import nnx, sow
from sonde.errors import NoSuchSiteError
from sonde.tools import attribute

METHODS = pytest.mark.parametrize("method", ["gradient", "integrated"])


@METHODS
@every_face
def test_every_face(face, method):
    found = attribute(forward(face), metric=jnp.sum, method=method, steps=2)(X)
    np.testing.assert_allclose(found["hidden"][0], HIDDEN * V, rtol=1e-6)  # linear: both methods agree
    np.testing.assert_allclose(found.totals["hidden"], 6.0, rtol=1e-6)
    assert float(found.output) == 6.0


class Layer(nnx.Module):
    def __init__(self, w, in_place):
        self.w = nnx.Param(jnp.float32(w))
        self.in_place = in_place

    def __call__(self, x):
        y = jnp.sin(x * self.w[...])
        if not self.in_place:
            return sow(y, "y")
        self.sow(nnx.Intermediate, "y", y)
        return y


class Model(nnx.Module):
    def __init__(self, in_place):
        self.blocks = nnx.List([Layer(1.0, in_place), Layer(2.0, in_place)])

    def __call__(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


@METHODS
def test_paths_of_modules_and_values_sown_by_modules(method):
    x = jnp.arange(3.0) + 0.5
    y = jnp.sin(x)
    for in_place in (False, True):
        found = attribute(Model(in_place), metric=jnp.sum, method=method)(x)
        assert sorted(found) == ["blocks/0/y", "blocks/1/y"]
        one = attribute(Model(in_place), "blocks/0/y", metric=jnp.sum, method=method)(x)
        np.testing.assert_array_equal(one["blocks/0/y"][0], found["blocks/0/y"][0])
        np.testing.assert_allclose(found["blocks/1/y"][0], jnp.sin(2 * (x + y)), rtol=1e-6)
        if method == "gradient":
            np.testing.assert_allclose(found["blocks/0/y"][0], y * (1 + 2 * jnp.cos(2 * (x + y))), rtol=1e-5)
        else:  # the whole difference, up to the error of the midpoint rule
            whole = jnp.sin(2 * (x + y)) + y - jnp.sin(2 * x)
            np.testing.assert_allclose(found["blocks/0/y"][0], whole, atol=1e-3)


def cubes(x):
    x = sow(x * 1, "x")
    y = sow({"y": x * 2, "n": 3}, "tree")["y"]
    return jnp.sum(sow(y, "twice") ** 3) + jnp.sum(sow(x, "twice"))


def test_calls_pytrees_and_baseline():
    x = jnp.array([1.0, 2.0])
    found = attribute(cubes, baseline=1.0)(x)
    np.testing.assert_allclose(found["twice"][0], (2 * x - 1) * 3 * (2 * x) ** 2, rtol=1e-5)
    np.testing.assert_allclose(found["twice"][1], x - 1, rtol=1e-5)
    np.testing.assert_allclose(found["tree"][0]["y"], (2 * x - 1) * 3 * (2 * x) ** 2, rtol=1e-5)
    np.testing.assert_allclose(found["x"][0], (x - 1) * (24 * x**2 + 1), rtol=1e-5)


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_integrated_gradients_add_up(around):
    x = jnp.array([1.0, 2.0])
    found = attribute(around(cubes), method="integrated", steps=64)(x)
    np.testing.assert_allclose(found["tree"][0]["y"], (2 * x) ** 3, rtol=1e-3)
    np.testing.assert_allclose(found.totals["twice"], float(cubes(x)), rtol=1e-3)
    np.testing.assert_allclose(found.totals["x"], float(cubes(x)), rtol=1e-3)


@METHODS
def test_loops_and_integers(method):
    def f(x):
        def body(c, w):
            return c + jnp.sum(sow(w * x, "h")) + 0 * sow(jnp.int32(3), "i"), None

        return lax.scan(body, 0.0, jnp.array([1.0, 2.0, 3.0]), reverse=True)[0]

    found = attribute(f, method=method)(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(found["h"][0], [[3.0, 6.0], [2.0, 4.0], [1.0, 2.0]], rtol=1e-5)
    assert found.totals["i"] == 0


def test_a_site_that_does_not_matter():
    found = attribute(lambda x: jnp.sum(sow(x, "used")) + 0 * jnp.sum(lax.stop_gradient(sow(x, "unused"))))(jnp.ones(2))
    assert found.totals == {"used": 2.0, "unused": 0.0}


def test_shown_and_errors():
    from rich.console import Console

    found = attribute(lambda x: jnp.sum(sow(x, "h")))(jnp.ones(2))
    assert repr(found) == "Attribution(2, {'h': 2.0})"
    shown = io.StringIO()
    Console(file=shown, width=100).print(found)
    assert "contributions to 2" in shown.getvalue()
    with pytest.raises(ValueError, match=r"attribute explains a number, got float32\[2\]; give a metric="):
        attribute(lambda x: sow(x, "h"))(jnp.ones(2))
    with pytest.raises(ValueError, match="the method is 'gradient' or 'integrated', got 'magic'"):
        attribute(cubes, method="magic")
    with pytest.raises(NoSuchSiteError, match="pattern 'no' matches none"):
        attribute(cubes, "no")(jnp.ones(2))
