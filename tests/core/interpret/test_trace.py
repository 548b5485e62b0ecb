"""The trace of a capture together with JAX's own: eager modes, and other interpreters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.jet import jet
from tests.core.comparing import check_nothing_is_left, double, equal, seen_or_refused

from sonde import capture, sow
from sonde.errors import CaptureError

X = jnp.array([0.5, -1.0, 2.0])


def test_disable_jit():
    def f(x):
        x = jax.jit(double)(x)
        x = lax.scan(lambda c, row: (sow(c + row, "c"), row), 0.0, x)[0]
        x = lax.cond(x > 0, lambda x: sow(x, "yes"), lambda x: sow(-x, "no"), x)
        return lax.while_loop(lambda x: x < 10, lambda x: sow(x * 2, "w"), x)

    with jax.disable_jit():
        result, records = capture(f)(X)
        want = f(X)
    equal(result, want)
    equal(records["h"].value, X * 2)
    assert len(records["w"].values) == 1 or records["w"].counts != (None,)
    check_nothing_is_left()


def test_a_site_in_compile_time_evaluation_is_seen_or_refused():
    def f(x):
        with jax.ensure_compile_time_eval():
            return x + sow(jnp.ones(3) * 2, "inside")

    for g in (
        f,
        jax.jit(f),
        lambda x: jax.jit(f)(x),
        lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    ):
        seen_or_refused(g, __file__)
    with pytest.raises(CaptureError, match=r"'inside' \(.*test_trace.py:\d+\).*ensure_compile_time_eval"):
        capture(lambda x: jax.jit(f)(x))(X)


def test_taylor_series():
    f = lambda x: jnp.sin(sow(x * x, "inside"))
    series = lambda x: jet(f, (x,), ((jnp.ones_like(x), jnp.zeros_like(x)),))
    for g in (series, jax.jit(series)):
        for grads in (False, True):
            result, records = capture(g, grads=grads)(X)
            jax.tree.map(equal, result, series(X))
            equal(records["inside"].value, X * X)


def test_a_site_that_no_rule_gets_out_is_an_error_that_names_it():
    f = jax.custom_batching.custom_vmap(lambda x: sow(x * 2, "deep"))
    f.def_vmap(lambda size, is_mapped, x: (sow(x * 2, "deep"), True))
    equal(capture(f)(X)[1]["deep"].value, X * 2)  # nothing around can map it
    with pytest.raises(
        CaptureError,
        match=r"site 'deep' \(.*test_trace.py:\d+\) cannot be captured: it is inside a 'custom_vmap_call', which "
        "is mapped around the capture by a rule of its own; sow the value before or after it",
    ):
        jax.vmap(capture(jax.jit(lambda x: f(x))))(X)
    with pytest.raises(
        CaptureError,
        match="it is inside a 'reduce', which XLA calls as often and in what order it likes; sow the value before",
    ):
        capture(lambda x: lax.reduce(x, 0.0, lambda a, b: sow(a + 2 * b, "deep"), (0,)))(X)
    check_nothing_is_left()


def test_python_control_flow_on_values_keeps_working():
    """Values are not wrapped by the trace, so a function can read their numbers."""

    def f(x):
        h = sow(x * 2, "h")
        for _ in range(int(h[2])):
            h = h + 1 if float(h.sum()) > 0 else h - 1
        return np.asarray(h).tolist()

    result, records = capture(f)(X)
    assert result == f(X)
    equal(records["h"].value, X * 2)


def test_mutable_objects_of_jax_are_used_under_a_capture():
    from jax._src import hijax

    def with_ref(x):
        ref = jax.new_ref(x)
        ref[...] = sow(ref[...] * 2, "h")
        return ref[...]

    def with_box(x):  # which JAX 0.12 does not have
        box = hijax.Box({"a": x})
        box.set({"a": sow(box.get()["a"] * 2, "h")})
        return box.get()["a"]

    for f in (with_ref, *([with_box] if hasattr(hijax, "Box") else [])):
        result, records = capture(f)(jnp.ones(2))
        assert result.tolist() == [2.0, 2.0] and list(records) == ["h"]
