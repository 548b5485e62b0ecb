"""Where a property of a result begins, in programs in which it is known."""

import jax
import jax.numpy as jnp
from jax import lax

from sonde.tools import trace_back

X = jnp.array([1.0, 0.5, 4.0])
is_zero = lambda g: g == 0
is_large = lambda x: abs(x) > 1e4


def growing(x):
    h = jnp.where(x < 1e9, x, 1e9)  # a bound that is never reached
    h = h * 100
    return lax.scan(lambda c, t: (c * t, None), h, jnp.array([2.0, 3.0, 50.0, 2.0]))[0]


def test_the_iteration_in_which_a_value_becomes_large():
    # 100, 50, 400 times 2, 3, 50: the first is 3e4, and the last 1.2e5, after iteration 2
    found = trace_back(jax.jit(growing), is_large)(X)
    assert (found.operation, found.iteration, found.function) == ("mul", (2,), "growing")
    assert trace_back(growing, is_large)(X / 100) is None


def test_a_dead_relu():
    loss = lambda w, x: jax.nn.relu(x @ w - 100).sum()
    for run in (jax.grad(loss), jax.jit(jax.grad(loss))):
        found = trace_back(run, is_zero)(jnp.ones(3), jnp.ones((2, 3)))
        assert found.operation == "constant" and found.choice.startswith("-97 > 0 is false, test_a_dead_relu / loss, ")
        assert "test_trace_back.py:" in found.source


def test_a_stopped_gradient_and_an_unused_argument():
    def loss(w, unused):
        return (lax.stop_gradient(w) * X).sum()

    found = trace_back(jax.jit(jax.grad(loss)), is_zero)(X, X)
    assert "does not depend on it, or only through stop_gradient: loss, " in found.choice
    found = trace_back(jax.jit(jax.grad(lambda w, u: (w * X).sum(), argnums=1)), is_zero)(X, X)
    assert found.choice == "nothing is computed for it: the result does not depend on it"


def test_a_factor_that_is_zero():
    weights = jnp.zeros((3, 2))
    loss = lambda x, w: jnp.sum((x @ w) * 3.0)
    found = trace_back(jax.jit(jax.grad(loss)), is_zero)(X.at[1].set(0.0), weights)
    assert found.operation == "argument" and found.operands[0].startswith("w[0, 0], ")


def test_an_argument_that_has_it_already():
    found = trace_back(lambda x: x + 1, is_large)(X * 1e5)
    assert found.operation == "argument" and "seen at the end: result" in str(found)
