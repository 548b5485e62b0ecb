"""Programs that `jax.make_jaxpr` returns inside a capture."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

import sonde

X = jnp.arange(3.0)
SCALE = jnp.array([2.0, 3.0, 4.0])
UNUSED = jnp.array([5.0, 6.0])


class Layer:
    """As a package would have it."""

    @staticmethod
    def halved(x):
        half = x / 2
        return half

    @staticmethod
    def scaled(x):
        unused = UNUSED  # only a site uses it
        scaled = x * SCALE
        inner = jax.jit(Layer.halved)(scaled)
        back = jax.lax.cond(x[0] > 0, Layer.halved, jnp.sin, inner)
        return jnp.tanh(back), unused.shape


def program(x):
    return jax.grad(lambda x: Layer.scaled(x)[0].sum())(x), Layer.scaled(x)[0]


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("f", [lambda x: Layer.scaled(x)[0], program, jax.vmap(lambda x: jnp.sin(Layer.halved(x)))])
def test_a_program_is_shown_without_the_marks_that_came_with_a_class(f, grads):
    plain = jax.make_jaxpr(f)(X)
    made = sonde.capture(lambda x: jax.make_jaxpr(f)(x), inside=Layer, grads=grads)(X)[0]
    assert "sonde" not in str(made)
    assert "sonde" not in str(made.effects)
    assert all(a is b for a, b in zip(made.consts, plain.consts, strict=True))
    if not grads or f is not program:  # tokens go through jitted functions
        assert made.pretty_print(name_stack=True) == plain.pretty_print(name_stack=True)
    jax.core.eval_jaxpr(made.jaxpr, made.consts, X)  # after the capture


def test_shapes_come_with_it():
    _, shape = sonde.capture(lambda x: jax.make_jaxpr(Layer.halved, return_shape=True)(x), inside=Layer)(X)[0]
    assert shape.shape == (3,)


def bound(made, x):
    """The program as the body of a loop, without JAX's own functions."""
    zero = jnp.int32(0)
    test = jax.make_jaxpr(lambda i, x: i < 1)(zero, x)
    body = jax.make_jaxpr(lambda i, x: (i + 1, Layer.halved(x)))(zero, x)
    return jax.lax.while_p.bind(zero, x, cond_nconsts=0, cond_jaxpr=test, body_nconsts=0, body_jaxpr=body)[1:]


WAYS = {
    "eval_jaxpr": lambda made, x: jax.core.eval_jaxpr(made.jaxpr, made.consts, x),
    "jaxpr_as_fun": lambda made, x: jax.extend.core.jaxpr_as_fun(made)(x),
    "jit": lambda made, x: jax.jit(jax.extend.core.jaxpr_as_fun(made))(x),
    "vmap": lambda made, x: jax.vmap(jax.extend.core.jaxpr_as_fun(made))(x[None]),
    "while_p": bound,
}


@pytest.mark.parametrize("way", WAYS)
def test_sites_are_seen_where_it_is_evaluated(way):
    def run(x):
        return WAYS[way](jax.make_jaxpr(lambda x: (Layer.halved(x), UNUSED * SCALE[0]))(x), x)[0]

    result, records = sonde.capture(run, inside=Layer)(X)
    np.testing.assert_array_equal(result, run(X))
    np.testing.assert_array_equal(jnp.ravel(records["Layer.halved/half"].value), X / 2)


@pytest.mark.parametrize("way", ["eval_jaxpr", "jit"])
def test_gradients_and_all_constants_are_there_too(way):
    def run(x):
        made = jax.make_jaxpr(lambda x: Layer.scaled(x)[0])(x)
        return jax.grad(lambda x: WAYS[way](made, x)[0].sum())(x)

    def directly(x):
        return jax.grad(lambda x: Layer.scaled(x)[0].sum())(x)

    result, records = sonde.capture(run, inside=Layer, grads=True)(X)
    expected, others = sonde.capture(directly, inside=Layer, grads=True)(X)
    np.testing.assert_allclose(result, expected)
    assert list(records) == list(others)
    for path, record in records.items():
        other = others[path]
        jax.tree.map(np.testing.assert_allclose, (record.values, record.grads), (other.values, other.grads))


def only_known(made, x):
    """An interpreter that refuses what it does not know."""
    values = dict(zip(made.jaxpr.invars, [x]))
    for eqn in made.jaxpr.eqns:
        if eqn.primitive.name != "div":
            raise NotImplementedError(eqn.primitive.name)
        values[eqn.outvars[0]] = values[eqn.invars[0]] / eqn.invars[1].val
    return values[made.jaxpr.outvars[0]]


@pytest.mark.parametrize("grads", [False, True])
def test_other_interpreters_do_not_meet_sites_that_may_be_missed(grads):
    def run(x):
        return only_known(jax.make_jaxpr(Layer.halved)(x), x) + Layer.halved(x)

    result, records = sonde.capture(run, inside=Layer, grads=grads)(X)
    np.testing.assert_array_equal(result, X)
    assert len(records["Layer.halved/half"].values) == 1
    with pytest.raises(NotImplementedError, match="sonde_site"):
        sonde.capture(run, inside=Layer.halved, grads=grads)(X)
    with pytest.raises(NotImplementedError, match="sonde_site"):
        sonde.edit(run, {"**/half": jnp.negative}, inside=Layer)(X)


def test_a_program_with_a_sown_site_is_shown_as_it_is():
    made = sonde.capture(lambda x: jax.make_jaxpr(lambda x: sonde.sow(Layer.halved(x), "h"))(x), inside=Layer)(X)[0]
    assert "sonde_site" in str(made)
