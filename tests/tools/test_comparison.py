"""The first difference of two programs, in programs where it is known."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.tools.models import V, W, X, every_face, forward, plain

from sonde import sow
from sonde.errors import CaptureError, NoSuchSiteError
from sonde.tools import compare

Y = jnp.arange(1.0, 4.0)


@every_face
def test_every_face(face):
    same = compare(forward(face), plain)(X)
    assert same.first is None
    assert (len(same.drifts), same.only_first, same.only_second) == (1, (), ())
    other = compare(forward(face), lambda x: plain(x, W.at[0, 0].set(2.0), V))(X)
    assert (other.first.path, other.first.beyond, other.first.size) == ("hidden", 2, 6)
    assert (other.first.max_abs, other.first.max_rel) == (3.0, 0.5)  # 3 against 6, of at most 6


def loop(x, wrong=None, at=2):
    def body(c, i):
        a = sow(c + 1, "a")
        b = sow(jnp.where((wrong == "b") & (i == at), a + 1, a), "b")
        return b, None

    x = sow(x, "start")
    x = lax.scan(body, x, jnp.arange(4))[0]
    return sow(x.sum(), "end")


@pytest.mark.parametrize("around", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_in_a_loop_by_iteration_first(around):
    found = compare(around(lambda x: loop(x, "b")), around(loop))(Y)
    assert (found.first.path, found.first.iteration) == ("b", (2,))
    assert [d.place for d in found.drifts if d.differs] == [
        "b, call 0, iteration 2",
        "a, call 0, iteration 3",
        "b, call 0, iteration 3",
        "end, call 0",
    ]
    assert (
        str(found.first)
        == "b, call 0, iteration 2: 3 of 3 elements differ, by up to 1 (0.167 of the largest; 0.197 of the norm)"
    )
    assert "test_comparison.py:" in found.first.source


def test_calls_in_program_order():
    def f(x, by=0.0):
        for i in range(2):
            x = sow(x * 2, "a")
            x = sow(x + by * (i == 0), "b")
        return x

    found = compare(lambda x: f(x, 1.0), f)(Y)
    assert [(d.path, d.call, d.differs) for d in found.drifts] == [
        ("a", 0, False),
        ("b", 0, True),
        ("a", 1, True),
        ("b", 1, True),
    ]


def test_precision():
    f = lambda x, t: sow(sow(x.astype(t), "cast") / 3, "third")
    found = lambda rtol: compare(lambda x: f(x, jnp.bfloat16), lambda x: f(x, jnp.float32), rtol=rtol)(Y)
    assert found(1e-4).first.path == "third"
    assert found(0.01).first is None
    np.testing.assert_allclose(found(0.01).drifts[1].max_abs, abs(float(jnp.bfloat16(2) / 3) - 2 / 3), rtol=1e-3)


def test_gradients_come_after_values_and_backwards():
    def loss(x, slope=1.0):
        h = sow(sow(x, "x") * 2, "h")
        return sow(jnp.sum(h * slope + lax.stop_gradient(h - h * slope)), "sum")

    found = compare(jax.grad(lambda x: loss(x, 2.0)), jax.grad(loss), grads=True)(Y)
    assert [(d.path, d.gradient) for d in found.drifts if d.differs] == [("h", True), ("x", True)]
    assert "h (gradient), call 0" in str(found)


def test_sites_of_one_and_other_shapes():
    f = lambda x: sow(sow(x, "a"), "shape").sum() + sow(x, "mine")[0]
    g = lambda x: sow(sow(sow(x, "a"), "a")[:2], "shape")
    found = compare(f, g)(Y)
    assert (found.only_first, found.only_second) == ((("mine", 0),), (("a", 1),))
    assert (found.first.path, found.first.note) == ("shape", "shape [3] against [2]")
    assert str(found).splitlines()[1:] == ["only in the first: mine[0]", "only in the second: a[1]"]


def test_nan_equals_nan_and_nothing_else():
    f = lambda x: sow(x, "h")
    g = lambda x: sow(x.at[0].set(1.0), "h")
    x = jnp.array([jnp.nan, jnp.inf, 2.0])
    assert compare(f, f)(x).first is None
    assert compare(f, g)(x).first.beyond == 1


def test_while_loops_of_other_lengths():
    f = lambda n: lambda x: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, sow(c[1] * 1, "w")), (0, x))
    found = compare(f(3), f(5))(Y)
    assert (found.first.iteration, found.first.note) == ((2,), "3 iterations of the loop against 5 iterations")
    assert compare(f(3), jax.jit(f(3)))(Y).first is None


def test_table_and_errors():
    from rich.console import Console

    shown = io.StringIO()
    Console(file=shown, width=150).print(compare(lambda x: loop(x, "b"), loop)(Y))
    assert "first difference at b, call 0, iteration 2" in shown.getvalue()
    with pytest.raises(NoSuchSiteError, match="pattern 'no' matches none"):
        compare(loop, loop, "no")(Y)
    with pytest.raises(CaptureError, match="compare must run on numbers"):
        jax.jit(lambda x: len(compare(loop, loop)(x).drifts))(Y)


def test_calls_of_a_jitted_loop_are_told_apart():
    @jax.jit
    def loop(x, bad):
        def body(c, i):
            c = sow(c + 1, "a")
            return sow(jnp.where(bad & (i == 2), c + 1e-2, c), "b"), None

        return jax.lax.scan(body, x, jnp.arange(4))[0]

    f = lambda x: loop(loop(x, False), False)
    g = lambda x: loop(loop(x, True), False)
    for _ in range(2):  # what is compiled by then must not be mistaken either
        found = compare(f, g)(jnp.float32(0.0))
        assert (found.first.path, found.first.call, found.first.iteration) == ("b", 0, (2,))
        places = [(d.path, d.call, d.iteration) for d in found.drifts]
        assert places == [(p, call, (i,)) for call in (0, 1) for i in range(4) for p in ("a", "b")]
