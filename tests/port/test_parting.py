"""Mistakes in a port are found at their operation, and named where one change mends them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.port.planted import IDS, MISTAKES, lines_of, original, ported

from sonde import sow
from sonde.tools import compare

X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 6)), jnp.float32)


@pytest.mark.every(2)
def test_a_right_port_is_called_right():
    found = compare(original, ported)(IDS)
    assert found.first is None and found.parting is None
    assert sum(d.gradient for d in found.results) == 23


@pytest.mark.every(5)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistakes_are_found_at_their_operation(mistake):
    found = compare(original, lambda ids: ported(ids, mistake), grads=False)(IDS)
    assert found.first is not None and found.parting is not None
    parting = found.parting
    sources = {operation.source for operation in (*parting.first[:1], *parting.second[:1])}
    assert sources & lines_of(mistake), f"{parting}"
    if MISTAKES[mistake] is not None:
        assert MISTAKES[mistake] in str(parting.cause)
    if parting.cause is not None:
        assert parting.cause.agreement < 1e-5


@pytest.mark.every(2)
@pytest.mark.parametrize(("earlier", "later"), [("eps", "gelu"), ("transposed", "mask"), ("gelu", "transposed")])
def test_of_several_mistakes_the_first_is_named(earlier, later):
    found = compare(original, lambda ids: ported(ids, later, earlier), grads=False)(IDS)
    assert MISTAKES[earlier] in str(found.parting.cause) and "something else differs later" in str(found.parting.cause)
    assert {operation.source for operation in found.parting.second[:1]} & lines_of(earlier)
    again = compare(original, lambda ids: ported(ids, later), grads=False)(IDS)
    assert MISTAKES[later] in str(again.parting.cause) and "the programs then agree" in str(again.parting.cause)


def test_a_difference_that_what_follows_hides_is_found_from_its_site():
    w = jnp.asarray(np.random.default_rng(1).normal(size=(6, 6)), jnp.float32)

    def net(x, eps):
        h = sow(x / jnp.sqrt((x * x).mean(-1, keepdims=True) + eps), "norm")
        return 1e4 + h @ w

    found = compare(lambda x: net(x, 1e-4), lambda x: net(x, 2e-4))(X)
    assert found.first.path == "norm"
    assert "with eps=0.0001 in place of 0.0002" in str(found)


def test_in_loops_branches_and_jitted_functions():
    def net(x, factor=1.0):
        def body(c, i):
            c = lax.cond(i % 2 == 0, lambda c: jnp.sin(c) * factor, lambda c: c + 1.0, c)
            return jax.jit(lambda c: c * 1.1)(c), c.sum()

        x, sums = lax.scan(body, x, jnp.arange(4))
        x = lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, c[1] * 1.5), (0, x))[1]
        return x, sums

    found = compare(net, lambda x: net(x, 1.5))(X)
    assert [op.name for op in found.parting.second] == ["mul"] and "1.5" in found.parting.second[0].text


def test_the_operation_of_a_gradient():
    @jax.custom_vjp
    def scaled(x):
        return jnp.sin(x)

    scaled.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x) * 1.5,))
    found = compare(jnp.sin, lambda x: scaled(x))(X)
    assert found.first.gradient and found.parting is not None
    assert "1.5" in found.parting.second[0].text and "test_parting.py" in found.parting.second[0].source


def test_lines_are_those_of_the_caller_of_a_function_of_jax():
    first = lambda x: jnp.where(x > 0, x, 0.0)
    first(X)
    found = compare(first, lambda x: jnp.where(x > 0, x * 2, 0.0))(X)
    line = test_lines_are_those_of_the_caller_of_a_function_of_jax.__code__.co_firstlineno + 3
    assert found.parting.second[0].source.endswith(f"test_parting.py:{line}")


def test_scopes_are_named():
    def net(x, by):
        with jax.named_scope("head"):
            return jnp.tanh(x) * by

    found = compare(lambda x: net(x, 2.0), lambda x: net(x, 3.0))(X)
    assert found.parting.second[0].scope == "head"
    assert "with mul by 2 in place of 3: the programs then agree to" in str(found)


@pytest.mark.parametrize("eps", [1e-6, 1e-4])
def test_an_epsilon_whose_difference_is_lost_in_rounding_on_the_way(eps):
    """What follows the sum is equal but for rounding; the first program's own result in place says little."""
    w = jnp.asarray(np.random.default_rng(1).normal(size=(6, 6)), jnp.float32)

    def net(x, eps):
        for _ in range(2):
            x = x + jax.nn.gelu(x * lax.rsqrt((x * x).mean(-1, keepdims=True) + eps) @ w)
        return x @ w

    found = compare(lambda x: net(x, 1e-5), lambda x: net(x, eps), grads=False)(2 * X)
    assert f"with eps=1e-05 in place of {eps:g}" in str(found.parting)


def test_no_cause_is_claimed_because_one_value_becomes_equal_by_chance():
    """Without `b`, `x + (a + b)` is a value that only the first program has, `x + a`; the mistake is what `b` is of."""
    v, w = (jnp.asarray(np.random.default_rng(i).normal(size=(6, 6)), jnp.float32) for i in (1, 2))
    tanh = lambda x: jnp.tanh(x @ v)

    def first(x):
        x = x + tanh(x)
        return jnp.sin((x + jax.nn.softmax(x @ w)) @ w)

    def second(x):
        return jnp.sin((x + (tanh(x) + jax.nn.softmax(x @ w))) @ w)

    found = compare(first, second, grads=False)(X)
    assert found.parting.second[0].name == "dot_general" and "without" not in str(found.parting)
