"""Recurrent cells: the computation from the linear maps of a step to the new memory.

The layers apply the linear maps, because the two Flax faces store them differently: one matrix per gate (`flax.linen`,
and `LSTMCell` of `flax.nnx`) or one for all gates (`OptimizedLSTMCell` and `GRUCell` of `flax.nnx`). `dense_gates`
makes the first form as cheap as the second. The functions here take the sums before the activation.

The new memory is returned as `(carry, output)`, ready for a loop. See `sonde.ops.sequence` for the loop.

Sites: `input_gate`, `forget_gate`, `cell_gate`, `output_gate`, `reset_gate`, `update_gate`, `candidate`,
after their activation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde._array_text import describe
from sonde.core import sow
from sonde.errors import LayerInputError
from sonde.ops.dense import dense
from sonde.ops.dtypes import Dtype

Activation = Callable[..., Any]
Pair = tuple[jax.Array, jax.Array]


def split_gates(x: jax.Array, n: int) -> list[jax.Array]:
    """The last axis in `n` equal parts, one per gate."""
    return jnp.split(x, n, axis=-1)


def dense_gates(
    x: jax.Array,
    kernels: Sequence[jax.Array],
    biases: Sequence[jax.Array] | None = None,
    *,
    dtype: Dtype | None = None,
) -> list[jax.Array]:
    """Several linear maps of the same inputs as one product.

    `x` is `(..., in)`, each kernel `(in, out)`, each bias `(out,)`; there is one `(..., out)` per kernel.
    """
    # One wide product keeps the device busier than several narrow ones; joining the kernels is cheap next to it.
    kernel = jnp.concatenate(kernels, axis=-1)
    bias = None if biases is None else jnp.concatenate(biases, axis=-1)
    return split_gates(dense(x, kernel, bias, dtype=dtype), len(kernels))


def lstm(
    memory: jax.Array,
    i: jax.Array,
    f: jax.Array,
    g: jax.Array,
    o: jax.Array,
    *,
    gate_fn: Activation = jax.nn.sigmoid,
    activation_fn: Activation = jnp.tanh,
) -> tuple[Pair, jax.Array]:
    """A step of a long short-term memory, from the sums at its four gates.

    Args:
        memory: The cell's memory `c`.
        i: Input gate.
        f: Forget gate.
        g: Candidate for the memory.
        o: Output gate.
        gate_fn: Activation of the gates.
        activation_fn: Activation of the candidate and of the memory.

    Returns:
        `((new memory, output), output)`.

    Example:
        >>> import jax.numpy as jnp
        >>> (c, h), y = lstm(*[jnp.zeros((2, 3))] * 5)
        >>> c.shape, y is h
        ((2, 3), True)
    """
    i, f = sow(gate_fn(i), "input_gate"), sow(gate_fn(f), "forget_gate")
    g, o = sow(activation_fn(g), "cell_gate"), sow(gate_fn(o), "output_gate")
    memory = f * memory + i * g
    output = o * activation_fn(memory)
    return (memory, output), output


def conv_lstm(memory: jax.Array, gates: jax.Array) -> tuple[Pair, jax.Array]:
    """A step of a convolutional LSTM, from the sum of both convolutions.

    The forget gate starts open: 1 is added to its sum.

    `gates` are the sums at input gate, candidate, forget gate and output gate, concatenated.
    """
    i, g, f, o = split_gates(gates, 4)
    return lstm(memory, i, f + 1, g, o)


def gru(
    hidden: jax.Array,
    r: jax.Array,
    z: jax.Array,
    n_input: jax.Array,
    n_hidden: jax.Array,
    *,
    gate_fn: Activation = jax.nn.sigmoid,
    activation_fn: Activation = jnp.tanh,
) -> tuple[jax.Array, jax.Array]:
    """A step of a gated recurrent unit.

    Args:
        hidden: The state before.
        r: The sum at the reset gate.
        z: The sum at the update gate.
        n_input: The contribution of the inputs to the candidate.
        n_hidden: The contribution of the state to the candidate, before the reset gate.
        gate_fn: Activation of the gates.
        activation_fn: Activation of the candidate.

    Returns:
        `(new state, new state)`.
    """
    r, z = sow(gate_fn(r), "reset_gate"), sow(gate_fn(z), "update_gate")
    n = sow(activation_fn(n_input + r * n_hidden), "candidate")
    hidden = (1.0 - z) * n + z * hidden
    return hidden, hidden


def mgu(
    hidden: jax.Array,
    f: jax.Array,
    n_input: jax.Array,
    n_hidden: jax.Array,
    *,
    reset_gate: bool = True,
    gate_fn: Activation = jax.nn.sigmoid,
    activation_fn: Activation = jnp.tanh,
) -> tuple[jax.Array, jax.Array]:
    """A step of a minimal gated unit: one gate both forgets and resets.

    Args:
        hidden: The state before.
        f: The sum at the gate.
        n_input: The contribution of the inputs to the candidate.
        n_hidden: The contribution of the state to the candidate.
        reset_gate: Whether the gate also scales `n_hidden`.
        gate_fn: Activation of the gate.
        activation_fn: Activation of the candidate.

    Returns:
        `(new state, new state)`.
    """
    f = sow(gate_fn(f), "forget_gate")
    n = sow(activation_fn(n_input + (f * n_hidden if reset_gate else n_hidden)), "candidate")
    hidden = (1.0 - f) * n + f * hidden
    return hidden, hidden


def simple_rnn(
    hidden: jax.Array, total: jax.Array, *, residual: bool = False, activation_fn: Activation = jnp.tanh
) -> tuple[jax.Array, jax.Array]:
    """A step of the simplest recurrent cell.

    `total` is the sum of the contributions of the inputs and the state. With `residual` the state is added before the
    activation. Returns the new state as the carry and as the output.
    """
    hidden = activation_fn(total + hidden if residual else total)
    return hidden, hidden


def check_carry(carry: Any, inputs: jax.Array, features: int, *, parts: int) -> None:
    """Checks that the memory of a cell fits the inputs: the same batch axes, and `features` at the end.

    Raises:
        LayerInputError: It does not.
    """
    leaves = list(carry) if isinstance(carry, tuple | list) else [carry]
    if len(leaves) != parts:
        raise LayerInputError(f"`carry` must have {parts} part(s), got {len(leaves)}.")
    for x in leaves:
        expected = (*inputs.shape[:-1], features)
        if getattr(x, "ndim", 0) != len(expected) or x.shape[-1] != features:
            raise LayerInputError(
                f"`carry` has the wrong shape: expected {expected} for inputs {describe(inputs)}, got {describe(x)}."
            )
