"""Recurrent cells against both Flax faces."""

from __future__ import annotations

import flax.linen as nn
import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import ops
from sonde.errors import LayerInputError

DTYPES = [None, jnp.bfloat16]


def linen_cell(cell, draw, carry, x):
    params = jax.tree.map(lambda p: draw(*p.shape), cell.init(jax.random.key(0), carry, x)["params"])
    return params, cell.apply({"params": params}, carry, x)


def maps(params, dtype):
    return lambda name, x: ops.dense(x, params[name]["kernel"], params[name].get("bias"), dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lstm_equals_linen(draw, close, dtype):
    x, c, h = draw(2, 3), draw(2, 4), draw(2, 4)
    params, theirs = linen_cell(nn.LSTMCell(4, dtype=dtype), draw, (c, h), x)
    f = maps(params, dtype)
    close(ops.lstm(c, *(f("i" + g, x) + f("h" + g, h) for g in "ifgo")), theirs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lstm_with_one_product_equals_linen(draw, close, dtype):
    x, c, h = draw(2, 3), draw(2, 4), draw(2, 4)
    params, theirs = linen_cell(nn.OptimizedLSTMCell(4, dtype=dtype), draw, (c, h), x)
    hidden = ops.dense_gates(
        h, [params["h" + g]["kernel"] for g in "ifgo"], [params["h" + g]["bias"] for g in "ifgo"], dtype=dtype
    )
    inputs = ops.dense_gates(x, [params["i" + g]["kernel"] for g in "ifgo"], dtype=dtype)
    close(ops.lstm(c, *(a + b for a, b in zip(hidden, inputs))), theirs)


def test_lstm_with_one_matrix_equals_nnx(draw, close):
    cell = fnnx.OptimizedLSTMCell(3, 4, rngs=fnnx.Rngs(0))
    x, c, h = draw(2, 3), draw(2, 4), draw(2, 4)
    close(ops.lstm(c, *ops.split_gates(cell.dense_i(x) + cell.dense_h(h), 4)), cell((c, h), x))


def test_gru_equals_nnx(draw, close):
    cell = fnnx.GRUCell(3, 4, rngs=fnnx.Rngs(0))
    x, h = draw(2, 3), draw(2, 4)
    (ri, zi, ni), (rh, zh, nh) = ops.split_gates(cell.dense_i(x), 3), ops.split_gates(cell.dense_h(h), 3)
    close(ops.gru(h, ri + rh, zi + zh, ni, nh), cell(h, x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gru_equals_linen(draw, close, dtype):
    x, h = draw(2, 3), draw(2, 4)
    params, theirs = linen_cell(nn.GRUCell(4, dtype=dtype), draw, h, x)
    f = maps(params, dtype)
    close(ops.gru(h, f("ir", x) + f("hr", h), f("iz", x) + f("hz", h), f("in", x), f("hn", h)), theirs)


@pytest.mark.parametrize("reset_gate", [True, False])
def test_mgu_equals_linen(draw, close, reset_gate):
    x, h = draw(2, 3), draw(2, 4)
    params, theirs = linen_cell(nn.MGUCell(4, reset_gate=reset_gate), draw, h, x)
    f = maps(params, None)
    close(ops.mgu(h, f("if", x) + f("hf", h), f("in", x), f("hn", h), reset_gate=reset_gate), theirs)


@pytest.mark.parametrize("residual", [True, False])
def test_simple_cell_equals_linen(draw, close, residual):
    x, h = draw(2, 3), draw(2, 4)
    params, theirs = linen_cell(nn.SimpleCell(4, residual=residual), draw, h, x)
    f = maps(params, None)
    close(ops.simple_rnn(h, f("i", x) + f("h", h), residual=residual), theirs)


def test_conv_lstm_equals_linen(draw, close):
    x, c, h = draw(2, 5, 3), draw(2, 5, 4), draw(2, 5, 4)
    params, theirs = linen_cell(nn.ConvLSTMCell(4, (3,)), draw, (c, h), x)
    gates = ops.conv(x, params["ih"]["kernel"], params["ih"]["bias"])
    gates = gates + ops.conv(h, params["hh"]["kernel"], params["hh"]["bias"])
    close(ops.conv_lstm(c, gates), theirs)


def test_other_activations_are_used(draw, close):
    x, c, h = draw(2, 3), draw(2, 4), draw(2, 4)
    cell = fnnx.OptimizedLSTMCell(3, 4, gate_fn=jax.nn.hard_sigmoid, activation_fn=jax.nn.relu, rngs=fnnx.Rngs(0))
    gates = ops.split_gates(cell.dense_i(x) + cell.dense_h(h), 4)
    close(ops.lstm(c, *gates, gate_fn=jax.nn.hard_sigmoid, activation_fn=jax.nn.relu), cell((c, h), x))


def test_gates_are_seen_at_every_step(draw):
    kernel, xs = draw(3, 16), draw(6, 2, 3)

    def run(xs):
        step = lambda c, x: ops.lstm(c[0], *ops.split_gates(x @ kernel, 4))
        return jax.lax.scan(step, (jnp.zeros((2, 4)),) * 2, xs)[1]

    y, seen = sonde.capture(run)(xs)
    # With the gates among its results the loop is another program, which may round once where the other rounds twice.
    np.testing.assert_allclose(y, run(xs), rtol=4 * np.finfo(np.float32).eps)
    assert {"input_gate", "forget_gate", "cell_gate", "output_gate"} == set(seen)
    np.testing.assert_allclose(seen["output_gate"].value, jax.nn.sigmoid((xs @ kernel)[..., 12:]), rtol=1e-5)

    _, seen = sonde.capture(lambda h: ops.gru(h, h, h, h, h))(draw(2, 4))
    assert set(seen) == {"reset_gate", "update_gate", "candidate"}
    _, seen = sonde.capture(lambda h: ops.mgu(h, h, h, h))(draw(2, 4))
    assert set(seen) == {"forget_gate", "candidate"}


def test_a_carry_that_does_not_fit_is_said(draw):
    with pytest.raises(LayerInputError) as caught:
        ops.check_carry((draw(2, 4), draw(2, 5)), draw(2, 3), 4, parts=2)
    assert str(caught.value) == (
        "`carry` has the wrong shape: expected (2, 4) for inputs float32[2,3], got float32[2,5]."
    )
    with pytest.raises(LayerInputError) as caught:
        ops.check_carry(draw(2, 4), draw(2, 3), 4, parts=2)
    assert str(caught.value) == "`carry` must have 2 part(s), got 1."
