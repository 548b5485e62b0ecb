"""Cells run over sequences: forward, backward, both ways, of given lengths."""

from __future__ import annotations

import flax.nnx
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import nnx


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "options",
    [
        {"reverse": True, "keep_order": True, "seq_lengths": jnp.array([2, 5])},
        {},
        {"time_major": True},
        {"reverse": True},
        {"seq_lengths": jnp.array([2, 5])},
    ],
    ids=lambda o: " ".join(o),
)
def test_rnn(same, draw, options):
    x = draw(6, 2, 3) if "time_major" in options else draw(2, 6, 3)
    same(
        lambda n, rngs: n.RNN(n.OptimizedLSTMCell(3, 4, rngs=rngs)),
        lambda n, m: (m(x, return_carry=True, **options), m(x, **options)),
    )


def test_rnn_from_a_given_memory(same, draw):
    x, h = draw(2, 6, 3), draw(2, 4)
    same(lambda n, rngs: n.RNN(n.GRUCell(3, 4, rngs=rngs), unroll=2), lambda n, m: m(x, initial_carry=h))


@pytest.mark.every(2)
@pytest.mark.parametrize("with_lengths", [True, False])
def test_bidirectional(same, draw, with_lengths):
    x, lengths = draw(2, 6, 3), jnp.array([2, 5]) if with_lengths else None

    def make(n, rngs):
        return n.Bidirectional(n.RNN(n.GRUCell(3, 4, rngs=rngs)), n.RNN(n.LSTMCell(3, 4, rngs=rngs)))

    same(make, lambda n, m: m(x, return_carry=True, seq_lengths=lengths))


class DroppingCell(nnx.SimpleCell):
    """Counts its steps, and drops from its inputs."""

    def __init__(self, *args, rngs, **kwargs):
        super().__init__(*args, rngs=rngs, **kwargs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.steps = nnx.BatchStat(jnp.array(0))

    def __call__(self, carry, x):
        self.steps[...] += 1
        return super().__call__(carry, self.dropout(x))


def test_what_a_step_changes_goes_on_to_the_next(draw):
    x, h = draw(2, 6, 3), draw(2, 4)
    by_hand, looped = (DroppingCell(3, 4, rngs=nnx.Rngs(0)) for _ in range(2))
    outputs, carry = [], h
    for t in range(6):
        carry, y = by_hand(carry, x[:, t])
        outputs.append(y)
    last, y = nnx.RNN(looped)(x, initial_carry=h, return_carry=True)
    # The loop is compiled as a whole. The numbers in the sums are near 1, whatever is left of them when they cancel.
    bounds = {"rtol": 1e-6, "atol": np.finfo(np.float32).eps}
    np.testing.assert_allclose(y, jnp.stack(outputs, axis=1), **bounds)
    np.testing.assert_allclose(last, carry, **bounds)
    assert looped.steps.get_value() == 6
    assert looped.dropout.rngs.count.get_value() == by_hand.dropout.rngs.count.get_value()


def test_streams_can_be_the_same_at_every_step(draw):
    x, h = jnp.ones((2, 6, 3)), draw(2, 4)
    cell = DroppingCell(3, 4, rngs=nnx.Rngs(0))
    _, seen = sonde.capture(lambda: nnx.RNN(Watched(cell), broadcast_rngs=nnx.RngState)(x, initial_carry=h))()
    dropped = next(record.value for path, record in seen.items() if path.endswith("dropped"))
    np.testing.assert_array_equal(dropped, jnp.broadcast_to(dropped[0], (6, 2, 3)))
    outputs = [
        library.RNN(only_dropout(library), broadcast_rngs=library.RngState)(x, initial_carry=h)
        for library in (nnx, flax.nnx)
    ]
    assert set(np.unique(outputs[0])) == {0.0, 2.0}
    np.testing.assert_array_equal(*outputs)


def only_dropout(library):
    """A cell of Sonde or of Flax whose output is its input after dropout."""

    class Cell(library.RNNCellBase):
        def __init__(self):
            self.dropout = library.Dropout(0.5, rngs=library.Rngs(0))

        @property
        def num_feature_axes(self):
            return 1

        def __call__(self, carry, x):
            return carry, self.dropout(x)

    return Cell()


class Watched(nnx.RNNCellBase):
    def __init__(self, cell):
        self.cell = cell

    @property
    def num_feature_axes(self):
        return 1

    def __call__(self, carry, x):
        return carry, sonde.sow(self.cell.dropout(x), "dropped")


def test_a_slice_of_the_parameters_for_every_step(draw):
    x, h = draw(2, 6, 3), draw(2, 4)
    cell = nnx.SimpleCell(3, 4, rngs=nnx.Rngs(0))
    kernels = draw(6, 3, 4)
    cell.dense_i.kernel.set_value(kernels)
    axes = {nnx.PathContains("dense_i"): 0, ...: nnx.Carry}
    cell.dense_i.bias.set_value(jnp.zeros((6, 4)))
    y = nnx.RNN(cell, state_axes=axes)(x, initial_carry=h)
    carry = h
    for t in range(6):
        carry = jnp.tanh(x[:, t] @ kernels[t] + carry @ cell.dense_h.kernel[...])
        np.testing.assert_allclose(y[:, t], carry, rtol=1e-5, atol=1e-6)


def test_gates_are_seen_at_every_step(draw):
    layer = nnx.RNN(nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0)))
    x = draw(2, 6, 3)
    y, seen = sonde.capture(layer)(x)
    np.testing.assert_allclose(y, layer(x), rtol=1e-6)
    gates = {path.split("/")[-1]: record.value.shape for path, record in seen.items()}
    for name in ("input_gate", "forget_gate", "cell_gate", "output_gate"):
        assert gates[name] == (6, 2, 4)
