"""Records made from what a handler recorded: reduced values, gradients that are zero, a remembered layout."""

import jax
import jax.numpy as jnp
from tests.core.comparing import equal

from sonde import capture, sow
from sonde.core.records import build as record_making

X = jnp.arange(3.0)


def test_an_integer_in_a_tree_has_gradient_zero():
    def loss(x):
        tree = sow({"x": x * 2, "n": jnp.arange(3), "s": "text"}, "tree")
        return jnp.sum(tree["x"] * tree["n"])

    gradient = capture(jax.grad(loss), grads=True)(X)[1]["tree"].grad
    equal({k: gradient[k] for k in "xn"}, {"x": jnp.arange(3.0), "n": jnp.zeros(3, int)})
    assert gradient["s"] == "text"


def test_a_gradient_that_is_zero_is_reduced_too():
    def loss(x):
        sow(x * 2, "unused")
        return sow(x * 3, "used").sum()

    records = capture(jax.grad(loss), grads=True, reduce=lambda v: {"sum": v.sum(), "n": jnp.ones(())})(X)[1]
    equal(records["unused"].grad, {"sum": jnp.zeros(()), "n": jnp.ones(())})
    equal(records["used"].grad, {"sum": jnp.full((), 3.0), "n": jnp.ones(())})


def test_where_the_arrays_of_a_compiled_function_go_is_found_once(monkeypatch):
    made = []
    arrange = record_making._arrange
    monkeypatch.setattr(record_making, "_arrange", lambda *args: made.append(args) or arrange(*args))
    f = jax.jit(lambda x: sow(sow(x * 2, "a") + 1, "b"))
    run = capture(lambda x: f(x))
    for i in range(3):
        equal(run(X + i)[1]["b"].value, (X + i) * 2 + 1)
    assert len(made) == 1
