"""Averages of parameters over training steps, as Flax's."""

from __future__ import annotations

import flax.nnx as fnnx
import jax.numpy as jnp
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
