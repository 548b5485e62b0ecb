"""The loop of recurrent layers against Flax."""

from __future__ import annotations

import itertools

import flax.linen as nn
import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import pytest
from flax.nnx.nn.recurrent import flip_sequences

from sonde import ops
from sonde.errors import LayerInputError


def scan_loop(step):
    """A loop for `run_sequence` from `jax.lax.scan`, for a cell that is a pure function."""

    def loop(carry, steps, keep_carries):
        def body(c, x):
            c, y = step(c, x)
            return c, (y, c if keep_carries else None)

        carry, (outputs, carries) = jax.lax.scan(body, carry, steps)
        return carry, outputs, carries

    return loop


@pytest.mark.every(5)
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_flipping_equals_flax(draw, close, time_major, batch):
    x = draw(5, *batch, 3) if time_major else draw(*batch, 5, 3)
    lengths = jnp.arange(jnp.zeros(batch).size).reshape(batch) + 1
    for seq_lengths in (None, lengths):
        close(
            ops.flip_sequences(x, seq_lengths, len(batch), time_major),
            flip_sequences(x, seq_lengths, len(batch), time_major),
        )


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "time_major, reverse, keep_order, with_lengths", list(itertools.product([False, True], repeat=4))
)
def test_the_loop_equals_flax(draw, close, time_major, reverse, keep_order, with_lengths):
    cell = fnnx.SimpleCell(3, 4, rngs=fnnx.Rngs(0))
    rnn = fnnx.RNN(cell, time_major=time_major, reverse=reverse, keep_order=keep_order, return_carry=True)
    x = draw(6, 2, 3) if time_major else draw(2, 6, 3)
    lengths = jnp.array([2, 5]) if with_lengths else None
    h = draw(2, 4)
    loop = scan_loop(lambda h, x: ops.simple_rnn(h, cell.dense_i(x) + cell.dense_h(h)))
    ours = ops.run_sequence(
        loop,
        h,
        x,
        num_feature_axes=1,
        seq_lengths=lengths,
        time_major=time_major,
        reverse=reverse,
        keep_order=keep_order,
    )
    close(ours, rnn(x, initial_carry=h, seq_lengths=lengths))


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_any_number_of_batch_axes(draw, close, batch):
    cell = nn.SimpleCell(4)
    x, h = draw(*batch, 6, 3), draw(*batch, 4)
    params = cell.init(jax.random.key(0), h, x[..., 0, :])
    theirs = nn.RNN(cell, return_carry=True, reverse=True).apply(
        {"params": {"cell": params["params"]}}, x, initial_carry=h
    )
    loop = scan_loop(lambda h, x: cell.apply(params, h, x))
    close(ops.run_sequence(loop, h, x, num_feature_axes=1, reverse=True), theirs)


def test_an_image_at_every_step(draw, close):
    cell = nn.ConvLSTMCell(4, (3,))
    x = draw(2, 6, 5, 3)
    carry = (draw(2, 5, 4), draw(2, 5, 4))
    params = cell.init(jax.random.key(0), carry, x[:, 0])
    lengths = jnp.array([6, 3])
    theirs = nn.RNN(cell, return_carry=True).apply(
        {"params": {"cell": params["params"]}}, x, initial_carry=carry, seq_lengths=lengths
    )
    loop = scan_loop(lambda h, x: cell.apply(params, h, x))
    close(ops.run_sequence(loop, carry, x, num_feature_axes=2, seq_lengths=lengths), theirs)


def test_what_does_not_fit_is_said(draw):
    loop = scan_loop(lambda h, x: (h, x))
    with pytest.raises(LayerInputError) as caught:
        ops.run_sequence(loop, draw(2, 4), draw(3), num_feature_axes=1)
    assert str(caught.value) == "`inputs` must have a time axis and 1 feature axes, got float32[3]."
    with pytest.raises(LayerInputError) as caught:
        ops.run_sequence(loop, draw(2, 4), draw(2, 6, 3), num_feature_axes=1, seq_lengths=jnp.ones(3, jnp.int32))
    assert str(caught.value) == "`seq_lengths` must have one length per sequence, shape (2,), got int32[3]."
