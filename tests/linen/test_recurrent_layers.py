"""Recurrent layers against their namesakes in flax.linen."""

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import pytest
from tests.linen.against_flax import assert_same, check

from sonde import linen as nn

X = jax.random.normal(jax.random.key(7), (2, 6, 4))
IMAGE = jax.random.normal(jax.random.key(8), (2, 7, 6, 4))
MASK = jnp.arange(6) < 4
NORMAL = jax.nn.initializers.normal()

CELLS = {
    "lstm": lambda nn: nn.LSTMCell(3),
    "optimized lstm": lambda nn: nn.OptimizedLSTMCell(3, bias_init=NORMAL, carry_init=NORMAL),
    "gru": lambda nn: nn.GRUCell(3, carry_init=NORMAL),
    "mgu": lambda nn: nn.MGUCell(3),
    "mgu without reset": lambda nn: nn.MGUCell(3, reset_gate=False),
    "simple": lambda nn: nn.SimpleCell(3),
    "simple residual": lambda nn: nn.SimpleCell(3, residual=True, dtype=jnp.bfloat16),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("build", CELLS.values(), ids=CELLS)
def test_cells(build):
    carry = build(nn).initialize_carry(jax.random.key(3), X[:, 0].shape)
    assert_same(carry, build(flax_nn).initialize_carry(jax.random.key(3), X[:, 0].shape))
    check(build, carry, X[:, 0])


@pytest.mark.every(2)
@pytest.mark.parametrize("build", CELLS.values(), ids=CELLS)
def test_rnn(build):
    check(lambda nn: nn.RNN(build(nn), return_carry=True), X)


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "options",
    [
        {"time_major": True},
        {"reverse": True},
        {"reverse": True, "keep_order": True},
        {"seq_lengths": jnp.array([3, 6])},
        {"seq_lengths": jnp.array([3, 6]), "reverse": True, "keep_order": True},
    ],
)
def test_rnn_options(options):
    x = X if not options.get("time_major") else jnp.swapaxes(X, 0, 1)
    check(lambda nn: nn.RNN(nn.GRUCell(3)), x, return_carry=True, **options)


def test_convolutional_rnn():
    images = jax.random.normal(jax.random.key(0), (2, 3, 5, 4, 2))
    check(lambda nn: nn.RNN(nn.ConvLSTMCell(3, (2, 2))), images)


def test_bidirectional():
    check(lambda nn: nn.Bidirectional(nn.RNN(nn.GRUCell(3)), nn.RNN(nn.LSTMCell(3))), X)
    check(
        lambda nn: nn.Bidirectional(nn.RNN(nn.GRUCell(3)), nn.RNN(nn.GRUCell(3)), merge_fn=lambda a, b: a + b),
        X,
        seq_lengths=jnp.array([2, 5]),
        return_carry=True,
    )


@pytest.mark.parametrize("name", ["lstm", "optimized lstm", "gru", "mgu", "simple", "simple residual"])
def test_a_carry_that_is_given_says_how_wide_the_cell_is(name):
    hidden = jax.random.normal(jax.random.key(1), (2, 5))
    carry = (hidden, 2 * hidden) if "lstm" in name else hidden
    check(CELLS[name], carry, X[:, 0])
