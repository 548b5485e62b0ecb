"""Which sites are inside a program, wherever JAX hides them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import sonde
from sonde import _jax, scope, sow
from sonde.core.marks.scopes import path_under
from sonde.core.marks.site_search import (
    first_site,
    gives_tokens,
    gradient_sites,
    has_sites,
    sites_inside,
    without_sites,
)
from sonde.core.session.session import CaptureState, with_capture_state


def traced(f, *args, grads=False):
    """The program of a function, as a capture would see it."""
    _jax.make_changes()  # as the first capture does
    with with_capture_state(CaptureState(grads=grads)):
        return jax.make_jaxpr(f)(*args)


def sown(x):
    return sow(x * 2, "h")


mapped = jax.custom_batching.custom_vmap(sown)
mapped.def_vmap(lambda size, is_mapped, x: (sown(x), is_mapped[0]))
HIDING = {
    "plain": sown,
    "jit": jax.jit(sown),
    "scan": lambda x: lax.scan(lambda c, _: (sown(c), None), x, length=2)[0],
    "cond": lambda x: lax.cond(x > 0, sown, lambda x: x, x),
    "while": lambda x: lax.while_loop(lambda c: c < 3, sown, x),
    "remat": jax.checkpoint(sown),
    "custom_vmap": mapped,
    "linear solve": lambda x: lax.custom_linear_solve(lambda y: 2 * y, x, lambda _, b: sown(b) / 4, symmetric=True),
    "root": lambda x: lax.custom_root(lambda y: y - x, x, lambda f, y: sown(y), lambda g, y: y / g(1.0)),
}


@pytest.mark.parametrize("f", HIDING.values(), ids=HIDING)
def test_a_site_is_found_in(f):
    jaxpr = traced(f, 1.5)
    assert has_sites(jaxpr)
    site = first_site(jaxpr)
    assert site is not None
    assert site.path == "h"
    assert not has_sites(jax.make_jaxpr(f)(1.5))  # no capture runs


def test_a_program_without_sites():
    jaxpr = traced(lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=2)[0], 1.0)
    assert not has_sites(jaxpr)
    assert first_site(jaxpr) is None
    assert list(sites_inside(jaxpr)) == []


def test_sites_come_in_program_order_with_their_loops_and_scopes():
    def f(x):
        with scope("a"):
            x = sow(x, "first")

            def body(c, _):
                with scope("b"):
                    return jax.jit(lambda c: sow({"c": c, "n": jnp.arange(3)}, "second")["c"])(c), None

            x = lax.scan(body, x, length=2)[0]
        return sow(x, "third")

    found = list(sites_inside(traced(f, jnp.ones(4))))
    assert [path_under(each.names, "", 1) + each.site.path for each in found] == ["a/first", "a/b/second", "third"]
    assert [each.loops for each in found] == [(), ((1, 2),), ()]  # under one name, two iterations
    assert [tuple(t.shape for t in each.types) for each in found] == [((4,),), ((4,), (3,)), ((4,),)]


def test_tokens_and_gradients_are_there_if_gradients_are_wanted():
    loss = lambda x: jnp.sum(sow(x * 2, "h") ** 2)
    x = jnp.ones(2)
    assert [gives_tokens(traced(loss, x, grads=g)) for g in (False, True)] == [False, True]
    assert gradient_sites(traced(loss, x, grads=True)) == ()  # no backward pass
    (site,) = gradient_sites(traced(jax.grad(loss), x, grads=True))
    assert site.path == "h"
    assert gradient_sites(traced(jax.grad(loss), x, grads=False)) == ()


X = jnp.arange(3.0)


def marked_program(mark):
    def body(carry, x):
        y = mark(jnp.sin(carry) * x, "y")
        return jax.lax.cond(y[0] > 0, lambda y: mark(y * 2, "positive"), jnp.cos, y), y.sum()

    def loss(x):
        with sonde.scope("loop"):
            last, sums = jax.lax.scan(body, x, jnp.ones((2, 3)))
        return mark(last, "last").sum() + jax.jit(lambda s: mark(s, "sums") * 2)(sums).sum()

    return jax.value_and_grad(loss)


def test_a_program_without_its_sites_is_the_plain_marked_program():
    _jax.make_changes()  # as the first capture does
    for grads in (False, True):
        with with_capture_state(CaptureState(grads=grads)):
            marked = jax.make_jaxpr(lambda x: marked_program(sonde.sow)(x))(X)
        plain = jax.make_jaxpr(lambda x: marked_program(lambda value, name: value)(x))(X)
        assert "sonde" in str(marked)
        bare = without_sites(marked)
        assert "sonde" not in str(bare)
        assert not bare.effects
        for got, wanted in zip(
            jax.core.eval_jaxpr(bare.jaxpr, bare.consts, X), jax.core.eval_jaxpr(plain.jaxpr, [], X)
        ):
            np.testing.assert_array_equal(got, wanted)


def test_a_program_that_has_no_sites_stays_the_same_object():
    plain = jax.make_jaxpr(marked_program(lambda value, name: value))(X)
    assert without_sites(plain) is plain
