"""Recurrent cells and layers against Flax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.errors import LayerInputError

CELLS = {"LSTMCell": 2, "OptimizedLSTMCell": 2, "GRUCell": 1, "SimpleCell": 1}


def carry_of(draw, cell):
    parts = tuple(draw(2, 4) for _ in range(CELLS[cell]))
    return parts if len(parts) > 1 else parts[0]


@pytest.mark.every(3)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16])
def test_a_step(same, draw, cell, dtype):
    carry, x = carry_of(draw, cell), draw(2, 3)

    def make(n, rngs):
        return getattr(n, cell)(3, 4, dtype=dtype, bias_init=n.initializers.normal(), rngs=rngs)

    same(make, lambda n, m: m(carry, x))


def test_options_of_cells(same, draw):
    h, x = draw(2, 4), draw(2, 3)
    same(lambda n, rngs: n.SimpleCell(3, 4, residual=True, activation_fn=n.relu, rngs=rngs), lambda n, m: m(h, x))
    same(lambda n, rngs: n.GRUCell(3, 4, gate_fn=n.hard_sigmoid, rngs=rngs), lambda n, m: m(h, x))


@pytest.mark.parametrize("cell", CELLS)
def test_the_first_memory(same, cell):
    def call(n, m):
        normal = n.initializers.normal()
        return m.initialize_carry((2, 5, 3), n.Rngs(4)), m.initialize_carry((2, 3), n.Rngs(4), normal)

    same(lambda n, rngs: getattr(n, cell)(3, 4, rngs=rngs), call, gradients=False)


@pytest.mark.parametrize("cell", CELLS)
def test_parameters_in_half_precision(draw, cell):
    layer = getattr(nnx, cell)(3, 4, param_dtype=jnp.bfloat16, dtype=None, rngs=nnx.Rngs(0))
    carry = layer.initialize_carry((2, 3), nnx.Rngs(0))
    assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves((carry, nnx.state(layer))))
    assert layer(carry, draw(2, 3, dtype=jnp.bfloat16))[1].dtype == jnp.bfloat16


def test_old_ways_warn():
    with pytest.warns(UserWarning, match="keep_rngs=True is an old way"):
        cell = nnx.GRUCell(3, 4, keep_rngs=True, rngs=nnx.Rngs(0))
    assert cell.initialize_carry((2, 3)).shape == (2, 4)
    with pytest.warns(UserWarning, match="carry_init of the constructor is an old way"):
        cell = nnx.GRUCell(3, 4, carry_init=nnx.initializers.ones, rngs=nnx.Rngs(0))
    assert jnp.all(cell.initialize_carry((2, 3), nnx.Rngs(0)) == 1)


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda d: nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0))((d(2, 4), d(2, 4)), d(2, 5)),
            "Linear at ii: `inputs` has the wrong number of input features: expected 3 along axis -1, got 5 in "
            "float32[2,5].",
        ),
        (
            lambda d: nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))(d(2, 5), d(2, 3)),
            "GRUCell: `carry` has the wrong shape: expected (2, 4) for inputs float32[2,3], got float32[2,5].",
        ),
        (
            lambda d: nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0))(d(2, 4), d(2, 3)),
            "LSTMCell: `carry` must have 2 part(s), got 1.",
        ),
        (
            lambda d: nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)).initialize_carry((2, 3)),
            "GRUCell: `initialize_carry` draws from `rngs`, but got none: pass an nnx.Rngs or an nnx.RngStream.",
        ),
        (
            lambda d: nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)))(d(3)),
            "RNN: `inputs` must have a time axis and 1 feature axes, got float32[3].",
        ),
        (
            lambda d: nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)))(d(2, 6, 3), seq_lengths=jnp.ones(3, jnp.int32)),
            "RNN: `seq_lengths` must have one length per sequence, shape (2,), got int32[3].",
        ),
    ],
)
def test_what_does_not_fit_is_said(draw, call, words):
    with pytest.raises(LayerInputError) as caught:
        call(draw)
    assert str(caught.value) == words


def test_an_unfinished_cell_says_what_is_missing(draw):
    class Cell(nnx.RNNCellBase):
        pass

    with pytest.raises(TypeError, match="Cell must define num_feature_axes to be a cell"):
        nnx.RNN(Cell())(draw(2, 6, 3))
    with pytest.raises(TypeError, match="A recurrent layer takes an nnx.Rngs"):
        nnx.RNN(Cell(), rngs=3)  # type: ignore[arg-type]
