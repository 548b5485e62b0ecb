"""What decorators, transforms and wrappers of libraries stand for as `inside=`."""

import functools

import equinox as eqx
import flax.nnx
import jax
import jax.numpy as jnp
import pytest

import sonde
from sonde.errors import InsideError
from sonde.inside.unwrap import functions_meant

X = jnp.arange(3.0)


def loss(x):
    y = x * 2
    return (y**2).sum()


def silent(function):
    def call(*args):
        return function(*args)

    return call


class Twice:
    def __init__(self, fn):
        self.fn = fn

    def __call__(self, x):
        return self.fn(x) * 2


@pytest.mark.parametrize(
    "wrap",
    [
        eqx.filter_jit,
        eqx.filter_grad,
        eqx.filter_vmap,
        eqx.filter_checkpoint,
        eqx.filter_custom_vjp,
        eqx.filter_hessian,
        lambda f: eqx.filter_jit(eqx.filter_value_and_grad(f)),
        lambda f: eqx.Partial(f),
        flax.nnx.grad,
        lambda f: flax.nnx.jit(flax.nnx.value_and_grad(f)),
        jax.named_call,
        silent,
        lambda f: functools.partial(jax.jit(silent(jax.checkpoint(f)))),
    ],
)
def test_a_wrapped_function_is_looked_into(wrap):
    _, records = sonde.capture(loss, inside=wrap(loss))(X)
    assert list(records) == ["loss/x", "loss/y", "loss/return"]


def test_an_object_that_takes_certain_arguments_stands_for_its_own_call():
    assert functions_meant(Twice(loss)) == ([Twice.__call__], [])


def test_what_is_named_must_be_found_whatever_it_holds():
    def outer(function):
        def generator(*args):
            yield function(*args)

        return generator

    with pytest.raises(InsideError, match="it is a generator function"):
        sonde.Inside(outer(loss))


def test_wrappers_that_wrap_each_other():
    a, b = (lambda x: x), (lambda x: x + 1)
    a.__wrapped__, b.__wrapped__ = b, a
    assert len(sonde.Inside(a).functions) == 1


def test_a_wrapped_model_is_the_model():
    linear = eqx.nn.Linear(3, 2, key=jax.random.key(0))
    for wrapped in (jax.jit(linear), eqx.filter_vmap(linear), functools.partial(eqx.filter_jit(linear), key=None)):
        assert list(sonde.capture(linear, inside=wrapped)(X)[1]) == ["in", "out"]


def test_a_list_of_modules_of_flax():
    layers = flax.nnx.List([flax.nnx.Linear(3, 3, rngs=flax.nnx.Rngs(0)) for _ in range(2)])
    _, records = sonde.capture(lambda x: layers[1](layers[0](x)), "**/out", inside=layers)(X)
    assert list(records) == ["0/out", "1/out"]


def test_the_parts_of_jax_that_compute():
    f = lambda x: jax.scipy.special.logsumexp(x) + jax.random.normal(jax.random.key(0), ()) + jax.ops.segment_sum(x, x)
    for scipy in (jax.scipy.special, "jax.scipy", "jax.scipy.*"):
        records = sonde.capture(lambda x: f(x.astype(int)), inside=[scipy, jax.random, jax.ops])(X)[1]
        assert {"logsumexp/exp_a", "normal/return", "segment_sum/return"} <= set(records)
