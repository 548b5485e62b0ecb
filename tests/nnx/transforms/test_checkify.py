"""Run-time checks that return an error, around functions of Variables: as JAX's, and as Flax's."""

import jax.numpy as jnp
from jax.experimental import checkify

from sonde import nnx


def root(model, x):
    model.count[...] += 1
    checkify.check(x >= 0, "x is negative: {x}", x=x)
    return jnp.sqrt(x) * model.w


def make(n):
    return n.Dict(w=n.Param(jnp.array(2.0)), count=n.Variable(jnp.array(0)))


def test_no_error_where_nothing_is_wrong(same):
    def use(n):
        model = make(n)
        error, out = n.checkify(root)(model, jnp.array(9.0))
        return error.get(), out, model.count[...]

    assert same(use)[0] is None


def test_an_error_is_returned_and_variables_are_changed(same):
    def use(n):
        model = make(n)
        error, out = n.checkify(root)(model, jnp.array(-1.0))
        return error.get().splitlines()[0], jnp.isnan(out), model.count[...]

    message, *_ = same(use)
    assert message.startswith("x is negative: -1.0")


def test_which_checks_are_made():
    f = lambda w, i: w[...][i]
    w = nnx.Param(jnp.arange(3.0))
    error, _ = nnx.checkify(f, errors=checkify.index_checks)(w, 5)
    assert "out-of-bounds" in error.get()
    error, _ = nnx.checkify(f)(w, 5)  # only those of the user
    assert error.get() is None


def test_inside_a_jitted_function():
    checked = nnx.jit(nnx.checkify(root))
    model = make(nnx)
    for x, wrong in ((4.0, False), (-4.0, True)):
        error, _ = checked(model, jnp.array(x))
        assert (error.get() is not None) == wrong
    assert int(model.count[...]) == 2
