"""Programs that are rewritten so that what a handler recorded comes out of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.core.comparing import equal

from sonde import capture, sow
from sonde.core.interpret.recording import Recording
from sonde.core.interpret.rewrite import rewrite
from sonde.core.marks.axes import Axis
from sonde.core.marks.site_search import has_sites
from sonde.core.session.session import CaptureState, capture_state, with_capture_state

X = jnp.array([0.5, -1.0, 2.0])


def test_a_numpy_constant_in_a_jitted_function_in_loops_and_branches():
    w = np.array([1.0, 2.0, 3.0], np.float32)
    f = jax.jit(lambda x: jnp.sin(sow(x * w, "h")))
    scanned = lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=1)[0].sum()
    equal(capture(jax.grad(scanned), grads=True)(X)[1]["h"].grad, jnp.cos(X * w)[None])
    branched = lambda x: lax.cond(x.sum() > 0, f, lambda x: x, x)
    equal(capture(jax.vmap(branched))(jnp.stack([X, -X]))[1]["h"].value, jnp.stack([X * w, jnp.zeros(3)]))


def test_a_capture_traces_a_jitted_function_once():
    traced = []

    @jax.jit
    def f(x):
        traced.append(capture_state() is not None)
        return sow(x * 2, "h")

    f(X), f(X)
    assert traced == [False]
    for _ in range(3):
        capture(lambda x: f(x))(X)
    assert traced == [False, True]
    f(X)
    assert traced == [False, True]
    for _ in range(3):
        capture(f)(X)
    assert traced in ([False, True], [False, True, True])


def traced(f, *args, grads=False):
    with with_capture_state(CaptureState(grads=grads)):
        return jax.make_jaxpr(f)(*args)


def one_of_each(x):
    x = sow(x * 2, "h")
    return jax.jit(lambda y: sow({"y": y + 1, "n": "text"}, "g")["y"])(x)


@pytest.mark.parametrize("running", [False, True], ids=["by moving", "by running"])
def test_a_rewritten_program_returns_what_was_seen(running):
    """Both ways to rewrite: a handler that only records, and one whose reduce function has to be run."""
    jaxpr = traced(one_of_each, X)
    handler = Recording((), reduce=(lambda v: v["y"] if isinstance(v, dict) else v) if running else None)
    with with_capture_state(CaptureState(grads=False)):
        new = rewrite(jaxpr, handler)
    assert not has_sites(new.jaxpr)
    assert has_sites(jaxpr)  # the program itself is left alone
    assert (new.n_outs, new.n_extra, [t.shape for t in new.types]) == (1, 2, [(3,), (3,)])
    outs = jax.core.eval_jaxpr(new.jaxpr.jaxpr, new.jaxpr.consts, *new.inputs(handler), X)
    assert [item.path for item in new.items(outs)] == ["h", "g"]
    equal(outs, [X * 2 + 1, X * 2, X * 2 + 1])
    assert list(handler.met.paths) == ["h", "g"]


def test_a_program_is_rewritten_once_for_each_way_to_look():
    jaxpr = traced(one_of_each, X)
    with with_capture_state(CaptureState(grads=False)):
        first = rewrite(jaxpr, Recording(()))
        assert rewrite(jaxpr, Recording(())) is first
        other = rewrite(jaxpr, Recording(("h",)))
        assert other is not first
        assert (first.n_extra, other.n_extra) == (2, 1)


def test_tokens_start_where_the_call_says():
    jaxpr = traced(one_of_each, X, grads=True)
    handler = Recording((), grads=True)
    with with_capture_state(CaptureState(grads=True)):
        new = rewrite(jaxpr, handler)
    first, second = (int(new.inputs(handler)[0]) for _ in range(2))
    assert second >= first + new.span  # no token is used by two calls
    assert new.takes_base


def test_items_of_a_loop_have_its_axis():
    jaxpr = traced(one_of_each, X)
    with with_capture_state(CaptureState(grads=False)):
        new = rewrite(jaxpr, Recording(()))
    outs = [X, jnp.stack([X] * 4), jnp.stack([X] * 4)]
    (h, _) = new.items(outs, Axis("scan", 4))
    assert [(a.kind, a.size, a.rows) for a in h.view.axes] == [("scan", 4, None)]
    (named, _) = new.items_of_named(outs, Axis("scan", 4), "")
    assert named.view.axes[0].rows is None  # its path, `h`, is not below the name


def test_a_value_with_several_names_is_one_output():
    def body(c, _):
        one = sow(c, "one")
        return sow(jnp.sin(sow(one, "two")), "three"), None

    def run(x):
        return jax.lax.scan(body, x, length=3)[0]

    x = jnp.ones(2)
    _, records = capture(lambda x: run(x))(x)
    rows = [x, jnp.sin(x), jnp.sin(jnp.sin(x))]
    assert all(jnp.array_equal(records[name].value, jnp.stack(rows)) for name in ("one", "two"))
    assert jnp.allclose(records["three"].value[:-1], jnp.stack(rows[1:]))
    program = jax.make_jaxpr(lambda x: capture(run)(x)[1])(x)
    (loop,) = (eqn for eqn in program.eqns if eqn.primitive.name == "scan")
    assert len(loop.outvars) == 1 + 2  # the carry, and two arrays for three names


def _three_names(x):
    one = sow(x, "one")
    return sow(jnp.sin(sow(one, "two")), "three")


def _twice(x):
    return jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, _three_names(s[1])), (0, x))[1]


PROGRAMS = {  # with the values of the names, and how many arrays the equation returns for them
    "while": (_twice, jnp.sin, 2 + 2 + 1),  # two that the loop carries, the names, how often it ran
    "cond": (lambda x: jax.lax.cond(x[0] > 0, _three_names, jnp.cos, x), lambda x: x, 1 + 2),
    "jit": (jax.jit(_three_names), lambda x: x, 1 + 2),
}


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("mapped", [False, True])
def test_a_value_with_several_names_leaves_loops_branches_and_jitted_functions_once(kind, mapped):
    f, last, n_outs = PROGRAMS[kind]
    x = jnp.array([0.5, 0.2])
    f, x = (jax.vmap(f), jnp.stack([x, x + 1])) if mapped and kind != "cond" else (f, x)
    _, records = capture(f)(x)
    for name in ("one", "two"):
        np.testing.assert_array_equal(records[name].value, last(x))
    np.testing.assert_allclose(records["three"].value, jnp.sin(last(x)), rtol=1e-6)
    program = jax.make_jaxpr(lambda x: capture(f)(x)[1])(x)
    (equation,) = (eqn for eqn in program.eqns if eqn.primitive.name == kind)
    assert len(equation.outvars) == n_outs
