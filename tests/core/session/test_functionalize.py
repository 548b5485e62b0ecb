"""Calls as functions of their arrays."""

import functools
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import nnx
from sonde.core.session.functionalize import JitByStaticPart, shapes_of_call, static_and_arrays
from sonde.tools import patch_sweep, site_gradients


def test_shapes_without_computing():
    seen = []

    def run(f, args, kwargs):
        seen.append(isinstance(args[0]["x"], jax.core.Tracer))
        return f(*args, **kwargs)

    x = {"x": jnp.ones(3), "name": "any", "shape": jax.ShapeDtypeStruct((2,), jnp.int32)}
    found = shapes_of_call(run, lambda tree, n: (tree["x"] * n, tree["shape"]), (x,), {"n": 2}, None)
    assert [y.shape for y in found] == [(3,), (2,)] and seen == [True]


class Weights(nnx.Module):
    def __init__(self) -> None:
        self.w = nnx.Param(jnp.array([1.0, 2.0]))

    def __call__(self, x: Any) -> Any:
        return jnp.sum(sonde.sow(self.w[...] * x, "h") ** 2)


class Holder:
    """An object that JAX knows nothing about."""

    def __init__(self) -> None:
        self.inner = {"model": Weights()}

    def __call__(self, x: Any) -> Any:
        return self.inner["model"](x)


of_a_global = Weights()


def changed_inside(kind: str) -> tuple[Any, Weights]:
    model = Weights()
    if kind == "global":
        of_a_global.w[...] = jnp.array([1.0, 2.0])
        return lambda x: of_a_global(x), of_a_global
    if kind == "object":
        holder = Holder()
        return holder, holder.inner["model"]
    if kind == "equinox":
        cell = eqx.nn.Linear(2, 2, key=jax.random.key(0))
        return lambda x: model(cell(x) * 0 + x), model
    forms = {
        "closure": lambda x: model(x),
        "method": model.__call__,
        "default": lambda x, model=model: model(x),
        "partial": functools.partial(lambda model, x: model(x), model),
        "nested": lambda x: (lambda y: model(y))(x),
        "jitted": lambda x: nnx.jit(lambda model, x: model(x))(model, x),
    }
    return forms[kind], model


@pytest.mark.parametrize(
    "kind", ["global", "object", "equinox", "closure", "method", "default", "partial", "nested", "jitted"]
)
def test_what_a_function_closes_over_may_change(kind: str) -> None:
    """A tool that is used again answers for the weights that there are now."""
    f, model = changed_inside(kind)
    ask, sweep = site_gradients(f, "**/h"), patch_sweep(f, "**/h", metric=lambda y: y, axis=None)
    x = jnp.ones(2)
    for weights in ([1.0, 2.0], [3.0, 4.0], [1.0, 2.0]):
        model.w[...] = jnp.array(weights)
        expected = float(np.sum(np.square(weights)))
        assert float(ask(x)[0]) == expected
        assert float(sweep(x, 2 * x).clean) == expected


def test_what_a_metric_closes_over_may_change() -> None:
    f, target = (lambda x: sonde.sow(2 * x, "h")), np.array([1.0, 1.0], np.float32)
    ask = site_gradients(f, "h", metric=lambda y: jnp.sum((y - target) ** 2))
    assert float(ask(jnp.ones(2))[0]) == 2
    target[0] = 5  # in place
    assert float(ask(jnp.ones(2))[0]) == 10
    target = jnp.array([2.0, 2.0])
    assert float(ask(jnp.ones(2))[0]) == 0


def test_equal_tools_share_their_programs():
    traces = itertools.count()

    def run(settings, metric, static, arrays):
        next(traces)
        return metric(arrays[0])

    double = lambda x: x * 2
    for i in range(3):
        metric = lambda y: y + 1  # one function, written anew
        compiled = JitByStaticPart.shared(functools.partial(run, "a", metric), double)
        assert compiled(*static_and_arrays((double, jnp.float32(i)))) == i + 1
    assert next(traces) == 1
    JitByStaticPart.shared(functools.partial(run, "b", lambda y: y), double)(*static_and_arrays((double, jnp.ones(()))))
    assert next(traces) == 3


def test_a_function_that_counts_its_traces_is_traced_once():
    traces = []

    def f(x):
        traces.append(len(traces))
        return x * 2

    compiled = JitByStaticPart(lambda static, arrays: static.whole(arrays)[0](static.whole(arrays)[1]))
    for number in (1.0, 2.0, 3.0):
        assert compiled(*static_and_arrays((f, jnp.float32(number)))) == 2 * number
    assert traces == [0]


def test_a_function_that_reads_another_number_now_is_traced_again():
    numbers = [2.0]

    def f(x):
        return x * numbers[0]

    compiled = JitByStaticPart(lambda static, arrays: static.whole(arrays)[0](static.whole(arrays)[1]))
    assert compiled(*static_and_arrays((f, jnp.float32(3)))) == 6
    numbers[0] = 5.0
    assert compiled(*static_and_arrays((f, jnp.float32(3)))) == 15
