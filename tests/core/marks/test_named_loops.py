"""Loops that have a name: their rows are addressed like those of a Python loop."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde

W = jnp.linspace(-1.0, 1.0, 4 * 3 * 3).reshape(4, 3, 3)
X = jnp.arange(1.0, 4.0)


def layer(x: Any, w: Any) -> Any:
    h = sonde.sow(jnp.tanh(x @ w), "mlp/h")
    return sonde.sow(x + h, "resid")


def by_loop(x: Any) -> Any:
    for i, w in enumerate(W):
        with sonde.scope(f"blocks/{i}"):
            x = layer(x, w)
    return sonde.sow(x.sum(), "end")


def by_scan(x: Any) -> Any:
    with sonde.scope("blocks/*"):
        x, _ = lax.scan(lambda x, w: (layer(x, w), None), x, W)
    return sonde.sow(x.sum(), "end")


def by_jitted_scan(x: Any) -> Any:
    run = jax.jit(lambda x: lax.scan(lambda x, w: (layer(x, w), None), x, W)[0])
    with sonde.scope("blocks/*"):
        x = run(x)
    return sonde.sow(x.sum(), "end")


def by_remat(x: Any) -> Any:
    with sonde.scope("blocks/*"):
        x, _ = lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, W)
    return sonde.sow(x.sum(), "end")


SCANS = {"scan": by_scan, "jitted scan": by_jitted_scan, "remat": by_remat}
WRAPPED = {
    "plain": lambda f: f,
    "jit": jax.jit,
    "vmap": jax.vmap,
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
}


def same(a: Any, b: Any) -> None:
    assert list(a) == list(b)
    for path in a:
        assert len(a[path].values) == len(b[path].values)
        np.testing.assert_allclose(a[path].value, b[path].value, rtol=2e-6)
        if a[path].grads:
            np.testing.assert_allclose(a[path].grad, b[path].grad, rtol=2e-6)
        else:
            assert not b[path].grads


@pytest.mark.every(2)
@pytest.mark.every(2)
@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_scan_has_the_records_of_a_loop(scan: str, wrapped: str) -> None:
    wrap = WRAPPED[wrapped]
    x = jnp.stack([X, -X]) if wrapped == "vmap" else X
    a, b = (sonde.capture(wrap(f), grads=True)(x)[1] for f in (by_loop, SCANS[scan]))
    same(a, b)
    if "grad" in wrapped:
        assert b["blocks/1/resid"].grads
    patterns = "blocks/{1..2}/resid", "**/3/mlp/*"
    a, b = (sonde.capture(wrap(f), *patterns, grads=True)(x)[1] for f in (by_loop, SCANS[scan]))
    assert list(b) == ["blocks/1/resid", "blocks/2/resid", "blocks/3/mlp/h"]
    same(a, b)
    assert b["blocks/*/resid"].value.shape[0] == 2


@pytest.mark.every(2)
@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("wrapped", ["plain", "jit", "grad"])
def test_edits_of_rows(scan: str, wrapped: str) -> None:
    wrap = WRAPPED[wrapped]
    _, records = sonde.capture(by_loop)(X)
    for edits in (
        {"blocks/2/mlp/h": jnp.zeros_like},
        {"blocks/{1..2}/*": lambda h: h * 3, "blocks/0/resid": jnp.array([1.0, 2.0, 3.0])},
        {"blocks/3/mlp/h": records["blocks/0/mlp/h"], "end": lambda x: x**2},
        {lambda site: site.path.startswith("blocks/1/"): lambda h: -h},
    ):
        expected = wrap(sonde.edit(by_loop, edits))(X * 2)
        np.testing.assert_allclose(wrap(sonde.edit(SCANS[scan], edits))(X * 2), expected, rtol=2e-6)


@pytest.mark.parametrize("f", [by_loop, *SCANS.values()])
def test_the_records_of_one_run_are_the_edits_of_the_next(f: Any) -> None:
    expected, records = sonde.capture(f)(X)
    given = {path: record.value for path, record in records.items() if path != "end"}
    stacked = {path: record.value for path, record in records.stacked.items() if path != "end"}
    some = sonde.capture(f, "blocks/{1..2}/resid")(X)[1]
    for edits in (records, given, stacked):
        np.testing.assert_allclose(sonde.edit(f, edits)(X * 5), expected, rtol=1e-6)
    last = sonde.edit(by_loop, {p: r.value for p, r in some.items()})(X * 5)
    np.testing.assert_allclose(sonde.edit(f, some)(X * 5), last, rtol=1e-6)


def test_records_of_loops_without_a_name_are_edits() -> None:
    def f(x: Any) -> Any:
        def outer(c: Any, w: Any) -> Any:
            inner = lax.scan(lambda c, u: (sonde.sow(c * u, "in"), None), c, jnp.array([2.0, 3.0]))[0]
            return lax.cond(w > 0, lambda c: sonde.sow(c + 1, "up"), lambda c: c, inner), None

        return jax.vmap(lambda x: lax.scan(outer, x, jnp.array([1.0, -1.0, 1.0]))[0])(x)

    expected, records = sonde.capture(f)(X)
    assert records["in"].value.shape == (3, 2, 3)
    np.testing.assert_array_equal(sonde.edit(f, records)(X * 7), expected)
    np.testing.assert_array_equal(sonde.edit(f, {"in": records["in"].value})(X * 7), expected)
    wrong = {"in": records["in"].value[:2]}
    with pytest.raises(sonde.errors.EditError, match="expected float32"):
        sonde.edit(f, wrong)(X)


def test_loops_in_loops() -> None:
    def f(x: Any, named: bool = True) -> Any:
        def step(c: Any, k: Any) -> Any:
            if named:
                with sonde.scope("layers/*"):
                    return lax.scan(lambda c, w: (sonde.sow(c * w + k, "h"), None), c, jnp.arange(1.0, 4.0))[0], None
            for i in range(3):
                with sonde.scope(f"layers/{i}"):
                    c = sonde.sow(c * (i + 1) + k, "h")
            return c, None

        return lax.scan(step, x, jnp.array([0.5, 1.5]))[0]

    _, a = sonde.capture(lambda x: f(x, False))(1.0)
    _, b = sonde.capture(f)(1.0)
    same(a, b)
    assert b["layers/1/h"].value.shape == (2,)  # the loop without a name is an axis
    edits = {"layers/1/h": sonde.Edit(lambda h: h * 10, iterations=1)}
    assert float(sonde.edit(f, edits)(1.0)) == float(sonde.edit(lambda x: f(x, False), edits)(1.0))

    def both(x: Any) -> Any:
        with sonde.scope("outer/*"):
            return lax.scan(step_of_both, x, jnp.arange(2.0))[0]

    def step_of_both(c: Any, k: Any) -> Any:
        with sonde.scope("inner/*"):
            return lax.scan(lambda c, w: (sonde.sow(c + w + k, "h"), None), c, jnp.arange(3.0))[0], None

    result, records = sonde.capture(both, "outer/0/inner/2/h", "outer/1/inner/0/h")(0.0)
    assert {path: float(r.value) for path, r in records.items()} == {"outer/0/inner/2/h": 3, "outer/1/inner/0/h": 4}
    assert float(sonde.edit(both, {"outer/1/inner/*/h": lambda h: h * 0})(0.0)) == 0.0
    assert float(result) == 9.0


def test_errors_and_the_rest() -> None:
    with pytest.raises(sonde.errors.NoSuchSiteError, match=r"blocks/9/resid.*nearest: 'blocks/\*/resid'"):
        sonde.capture(by_scan, "blocks/9/resid")(X)
    with pytest.raises(KeyError, match="blocks/3/resid"):
        sonde.capture(by_scan)(X)[1]["blocks/5/resid"]
    assert sonde.sites(by_scan)(X).paths == sonde.sites(by_loop)(X).paths
    _, records = sonde.capture(by_scan)(X)
    copied = pickle.loads(pickle.dumps(records))
    same(records, copied)
    mapped = jax.vmap(lambda x: sonde.capture(by_scan)(x)[1])(jnp.stack([X, -X]))
    np.testing.assert_allclose(mapped["blocks/2/resid"].value[0], records["blocks/2/resid"].value, rtol=1e-6)
    assert jax.make_jaxpr(by_scan)(X).pretty_print() == jax.make_jaxpr(lambda x: _plain(x))(X).pretty_print()


def _plain(x: Any) -> Any:
    return lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, W)[0].sum()


def test_perturbing_a_named_loop() -> None:
    zeros = sonde.zero_perturbations(by_scan, "blocks/*/resid")(X)
    assert {path: x.shape for path, x in zeros.items()} == {"blocks/*/resid": (4, 3)}
    grads = jax.grad(sonde.with_perturbations(by_scan))(zeros, X)["blocks/*/resid"]

    def in_a_scope(x: Any) -> Any:
        with sonde.scope("a"):
            return lax.scan(lambda c, w: (sonde.perturb(c * w, "h"), None), x, jnp.array([2.0, 3.0]))[0]

    given = sonde.zero_perturbations(in_a_scope)(1.0)
    assert float(sonde.with_perturbations(in_a_scope)({"a/h": jnp.array([1.0, 10.0])}, 1.0)) == 19.0
    assert given["a/h"].shape == (2,)
    _, records = sonde.capture(jax.grad(by_loop), grads=True)(X)
    np.testing.assert_allclose(grads[2], records["blocks/2/resid"].grad, rtol=1e-6)
