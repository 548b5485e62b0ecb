"""Averages of parameters over training steps, as Flax's."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.nnx.training.comparing import same

from sonde import nnx


def state(where, metric):
    return {path: x.get_value() for path, x in where.to_flat_state(where.state(metric))}


def test_moving_averages_equal_flax():
    seen = []
    for where in (nnx, fnnx):
        model = where.Linear(3, 4, rngs=where.Rngs(0))
        ema = where.EMA(model, decay=0.9, only=where.Param)
        averaged = ema.apply_to(model)
        for _ in range(3):
            model.kernel[...] += 1
            ema.update(model)
        assert averaged is not model
        seen.append((state(where, ema), state(where, averaged), averaged(jnp.ones((2, 3)))))
    same(*seen)
    assert list(seen[0][0]) == list(seen[1][0])


def test_an_average_of_something_else_is_said():
    ema = nnx.EMA(nnx.Linear(3, 4, rngs=nnx.Rngs(0)), decay=0.9)
    with pytest.raises(ValueError, match=r"EMA\.update was given no Variable at bias, which it averages"):
        ema.update(nnx.Linear(3, 4, use_bias=False, rngs=nnx.Rngs(0)))


def test_the_formula_and_the_dtype():
    w = nnx.Param(jnp.zeros(2, jnp.bfloat16))
    ema = nnx.EMA(nnx.Dict(w=w), decay=0.75)
    expected = np.zeros(2)
    for value in (1.0, 4.0, -2.0):
        w[...] = jnp.full(2, value, jnp.bfloat16)
        ema.update(nnx.Dict(w=w))
        expected = 0.75 * expected + 0.25 * value
    average = ema.params["w"][...]
    assert average.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(average, np.float32), expected, rtol=0.01)
    assert w.sum() == -4  # the model is left as it is


def test_what_is_not_averaged_stays_that_of_the_model():
    model = nnx.Dict(w=nnx.Param(jnp.array(1.0)), n=nnx.BatchStat(jnp.array(5)))
    ema = nnx.EMA(model, decay=0.5, only=nnx.Param)
    averaged = ema.apply_to(model)
    assert averaged.n is model.n
    assert averaged.w is ema.params["w"]
    assert averaged.w is not model.w


def test_in_a_jitted_step():
    model = nnx.Dict(w=nnx.Param(jnp.array(1.0)))
    ema = nnx.EMA(model, decay=0.5)

    @nnx.jit
    def step(model, ema):
        model.w[...] *= 3
        ema.update(model)

    step(model, ema)
    assert [float(jax.tree.leaves(x)[0]) for x in (model, ema.params)] == [3.0, 2.0]
