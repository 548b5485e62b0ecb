"""Jitted functions: traced once per capture, called under their options, recorded under the scope of each call."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from tests.core.comparing import equal, kinds

import sonde
from sonde import capture, sow

X = jnp.array([0.5, -1.0, 2.0])


def mesh_of_two() -> Any:
    return jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))


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


def test_a_jitted_function_that_closes_over_an_array():
    w = jnp.arange(3.0)
    f = jax.jit(lambda x: sow(x * w, "h"))
    equal(capture(f)(X)[1]["h"].value, X * w)
    scanned = jax.jit(lambda x: lax.scan(lambda c, i: (sow(c * w, "c"), sow(w[i], "w")), x, jnp.arange(2)))
    _, records = capture(scanned)(X)
    equal((records["c"].value, records["w"].value), (jnp.stack([X * w, X * w * w]), w[:2]))


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, jax.named_scope("n")], ids=["jit", "remat", "named_scope"])
def test_jit_remat_and_named_scope_change_nothing(wrap):
    f = wrap(lambda x: jnp.sin(sow(x * 2, "h")))
    result, records = capture(f)(X)
    equal(result, jnp.sin(X * 2))
    equal(records["h"].value, X * 2)
    assert kinds(records["h"]) == [[]]


@pytest.mark.parametrize("inner", [lambda x: x + 1, lambda x: sow(x + 1, "after")], ids=["plain", "with a site"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_value_that_is_recorded_and_then_donated_stays(inner, depth):
    donating = jax.jit(inner, donate_argnums=0)

    def f(x):
        for i in range(3):  # the second call would be on JAX's fast path
            x = sow(donating(x * 2), f"h{i}")
            x = donating(x)
        return x

    expected = f(jnp.ones(3))
    captured = f
    for _ in range(depth):
        captured = capture(captured)
    result = captured(jnp.ones(3))
    for _ in range(depth):
        result, records = result
        np.testing.assert_array_equal(records["h0"].value, 3 * np.ones(3))
        np.testing.assert_array_equal(records["h1"].value, 9 * np.ones(3))
        np.testing.assert_array_equal(records["h2"].value, 21 * np.ones(3))
    np.testing.assert_array_equal(result, expected)


def test_what_is_not_recorded_is_donated():
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)
    given = []

    def f(x):
        given.append(x * 2)
        return sow(donating(given[0]), "h")

    capture(f)(jnp.ones(3))
    assert given[0].is_deleted()
