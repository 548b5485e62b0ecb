"""The numbers of a level: the same whether it is kept whole or computed in segments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde.programs.callbacks import Callbacks
from sonde.programs.flat import flatten
from sonde.programs.running import Values


def program(x, w):
    for _ in range(3):
        x = jax.nn.softmax(jnp.where(x > 0, x @ w, -jnp.inf)) + jnp.tanh(x)
    return x.sum(), x


@pytest.mark.parametrize("most_bytes", [1, 100, 500])
def test_segments_give_the_same_numbers(most_bytes):
    inputs = jnp.arange(9.0).reshape(3, 3) - 2, jnp.eye(3) * 2
    level = flatten(jax.make_jaxpr(jax.jit(program))(*inputs))
    whole = Values(level, inputs, Callbacks())
    parts = Values(level, inputs, Callbacks(), most_bytes=most_bytes)
    assert len(parts._segments) > 1 and len(whole._segments) == 1
    slots = [slot for equation in level.equations for slot in equation.outputs]
    for slot in [*reversed(slots), *slots[::3]]:
        np.testing.assert_allclose(parts.host(slot), whole.host(slot), rtol=1e-6)
    expected = program(*inputs)
    np.testing.assert_allclose(whole.host(level.outputs[0]), expected[0], rtol=1e-6)
    np.testing.assert_allclose(whole.host(level.outputs[1]), expected[1], rtol=1e-6)
    # Of earlier segments, only what later ones need is kept.
    assert most_bytes == 1 or len(parts._kept) < len(whole._kept)  # 1: each equation is a segment, and is needed later
