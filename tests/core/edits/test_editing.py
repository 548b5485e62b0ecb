"""Rules: what is put at a site may depend on its path, its call and the iteration."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import sonde
from sonde import sow
from sonde.core import ADDED, Put, Supplied, put_by_rule

X = jnp.arange(3.0) + 0.5


def called_twice(x):
    g = jax.jit(lambda x: sow(x * 2, "h"))
    with sonde.scope("a"):
        y = g(x)
    return g(g(y))


def test_a_rule_knows_paths_calls_and_iterations():
    met = []

    def rule(values, where):
        met.append((where.path, where.call, len(where.iteration), [np.shape(x) for x in values]))

    np.testing.assert_array_equal(put_by_rule(called_twice, rule)(X), called_twice(X))
    assert met == [("a/h", 0, 0, [(3,)]), ("h", 0, 0, [(3,)]), ("h", 1, 0, [(3,)])]
    met.clear()
    looped = lambda x: lax.scan(lambda c, _: (lax.map(lambda a: sow(a + 1, "h"), c), None), x, length=2)[0]
    put_by_rule(looped, rule)(X)
    assert met == [("h", 0, 2, [()])]


def test_a_rule_by_call_and_path():
    rule = lambda values, where: Supplied([[x * 0 + 7 for x in values]]) if where.call == 1 else None
    np.testing.assert_array_equal(put_by_rule(called_twice, rule)(X), [7.0] * 3)
    np.testing.assert_array_equal(put_by_rule(called_twice, rule, paths=["a/h"])(X), called_twice(X))
    first = lambda values, where: Supplied([[x * 0 + 7 for x in values]])
    np.testing.assert_array_equal(put_by_rule(called_twice, first, paths=["a/h"])(X), [28.0] * 3)


def test_rules_are_asked_where_a_path_may_be_alone():
    """The program has no equation for other sites."""
    f = lambda x: sow(sow(x * 2, "h") + 1, "other")
    rule = lambda values, where: Supplied([[x * 0 for x in values]])

    def made(*paths):
        program = jax.make_jaxpr(put_by_rule(jax.jit(f), rule, paths=paths))(X).jaxpr.eqns[0].params["jaxpr"]
        return len(program.eqns)

    assert made("h") > made() == made("z/h/x")
    assert made("blocks/3/h") > made()  # it may be in a loop with a name


def test_what_a_rule_supplies_becomes_part_of_the_program():
    square = Put(lambda old, more: [a**2 + b for a, b in zip(old, more)])
    f = lambda x: (sow(jnp.sin(x), "h") * x).sum()
    rule = lambda values, where: Supplied([[jnp.full_like(x, 0.5) for x in values]])
    hand = lambda x: ((jnp.sin(x) ** 2 + 0.5) * x).sum()
    for transform in (jax.grad, jax.hessian, lambda f: jax.jit(jax.grad(f)), lambda f: jax.grad(jax.checkpoint(f))):
        np.testing.assert_allclose(put_by_rule(transform(f), rule, square)(X), transform(hand)(X), rtol=1e-5)
        np.testing.assert_allclose(transform(put_by_rule(f, rule, square))(X), transform(hand)(X), rtol=1e-5)


def test_where_a_rule_applies_may_be_traced():
    f = lambda x: lax.scan(lambda c, _: (sow(c * 2, "h"), None), x, length=3)[0]
    rule = lambda values, where: Supplied([[x * 0 + 1 for x in values]], where.iteration[0] == 1)
    np.testing.assert_array_equal(put_by_rule(f, rule, ADDED)(X), (X * 4 + 1) * 2)


def test_a_rule_says_whether_the_program_differentiates_the_value():
    seen = []
    rule = lambda values, where: seen.append(where.is_differentiated)
    f = lambda x: (sow(x * 2, "h") ** 2).sum()
    put_by_rule(f, rule)(X)
    jax.grad(put_by_rule(f, rule))(X)
    put_by_rule(jax.grad(f), rule)(X)
    put_by_rule(jax.jit(jax.grad(f)), rule)(X)
    put_by_rule(jax.grad(jax.checkpoint(f)), rule)(X)
    assert seen == [False, False, True, True, True]
