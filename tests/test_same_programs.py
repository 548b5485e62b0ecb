"""Programs are the same whatever they are divided into, and different as soon as a number is."""

import jax
import jax.numpy as jnp
from tests.same_programs import names_of_outputs, outcomes_that_differ


def names(f):
    return names_of_outputs(jax.jit(f).trace(jnp.ones((2, 3))))


def loop(by):
    return lambda x: jax.lax.scan(lambda c, _: (jax.nn.relu(c * by), c), x, None, length=2)


def test_what_a_program_is_divided_into_does_not_matter():
    def divided(x):
        jnp.cos(x)  # dead code
        return jax.jit(lambda x: (jnp.sin(x), jax.nn.relu(x)))(x)

    assert names(divided) == names(lambda x: (jnp.sin(x), jnp.maximum(x, 0)))
    assert names(loop(2.0)) == names(lambda x: jax.jit(loop(2.0))(x))


def test_other_numbers_are_another_program():
    assert names(lambda x: x + 1) != names(lambda x: x + 2)
    assert names(lambda x: x @ x.T) != names(lambda x: x @ (x * 1.5).T)
    assert names(loop(2.0)) != names(loop(3.0))
    table = jnp.arange(3.0)
    assert names(lambda x: x + table) != names(lambda x: x + table[::-1] * 1)
    x, y = names(lambda x: (jnp.sin(x), jnp.sin(x)))
    assert x == y


def test_functions_that_return_the_same():
    x = jnp.ones((2, 3))
    function = lambda by, name="a": lambda: {"y": x * by, "axes": (name, None)}
    assert outcomes_that_differ(function(2), function(2)) is None
    ours, theirs = outcomes_that_differ(function(2), function(3, "b"))
    assert (float(ours["y"].sum()), ours["axes"]) == (12, ("a", None))
    assert (float(theirs["y"].sum()), theirs["axes"]) == (18, ("b", None))
    assert outcomes_that_differ(function(2), function(2, "b")) is not None
    assert outcomes_that_differ(function(2), lambda: {"z": x * 2, "axes": ("a", None)}) is not None
    assert outcomes_that_differ(function(2), lambda: {"y": (x * 2).astype("bfloat16"), "axes": ("a", None)}) is not None
    ours, theirs = outcomes_that_differ(lambda: x if x[0, 0] > 0 else -x, lambda: x)  # needs a number
    assert ours is x and theirs is x
