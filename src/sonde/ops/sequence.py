"""The loop of recurrent layers: over time, in either direction, for sequences of different lengths.

The caller provides the loop itself (`jax.lax.scan`, or the scan of a module system, which also carries the module's
state). This file does the rest: it moves the time axis, reverses sequences, and finds the last memory.

Sharp edges:
- Steps after the end of a sequence are computed like any other; ignore their outputs. Only the last memory is taken
  from where the sequence ends.
- A sequence of length 0 counts as one of full length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sonde._array_text import describe
from sonde.errors import LayerInputError

Carry = Any
Loop = Callable[[Carry, Any], tuple[Carry, Any]]


def flip_sequences(
    inputs: jax.Array, seq_lengths: jax.Array | None, num_batch_dims: int, time_major: bool
) -> jax.Array:
    """Reverses sequences in time; padding stays after them.

    Args:
        inputs: `(batch..., time, ...)`, or `(time, batch..., ...)` if time-major.
        seq_lengths: `(batch...)`; None reverses the whole axis.
        num_batch_dims: How many batch axes there are.
        time_major: Whether time is the first axis.

    Returns:
        An array shaped like the inputs.

    Example:
        >>> import jax.numpy as jnp
        >>> flip_sequences(jnp.array([[5, 6, 7, -1], [8, 9, -1, -1]]), jnp.array([3, 2]), 1, False)
        Array([[ 7,  6,  5, -1],
               [ 9,  8, -1, -1]], dtype=int32)
    """
    axis = 0 if time_major else num_batch_dims
    if seq_lengths is None:
        return jnp.flip(inputs, axis=axis)
    steps = inputs.shape[axis]
    step = jnp.expand_dims(jnp.arange(steps), [i for i in range(num_batch_dims + 1) if i != axis])
    # A full sequence has its end at 0, and is reversed by the second case. Padding is reversed too, within itself.
    end = jnp.expand_dims(seq_lengths % steps, axis)
    source = jnp.where(step < end, end - 1 - step, end + steps - 1 - step)
    return jnp.take_along_axis(inputs, jnp.expand_dims(source, [*range(source.ndim, inputs.ndim)]), axis=axis)


def run_sequence(
    loop: Callable[[Carry, Any, bool], tuple[Carry, Any, Any]],
    initial_carry: Carry,
    inputs: jax.Array,
    *,
    num_feature_axes: int,
    seq_lengths: jax.Array | None = None,
    time_major: bool = False,
    reverse: bool = False,
    keep_order: bool = False,
) -> tuple[Carry, Any]:
    """Runs a cell over sequences.

    Args:
        loop: `(carry, steps, keep_carries) -> (carry, outputs, carries)`: runs the cell over the first axis
            of `steps`; `carries` are the memories after every step if `keep_carries`, else None.
        initial_carry: The memory at the start.
        inputs: `(batch..., time, features...)`, or `(time, batch..., features...)` if time-major.
        num_feature_axes: How many axes the features have.
        seq_lengths: `(batch...)`: how long every sequence is; None means all are full.
        time_major: Whether time is the first axis.
        reverse: Whether to run from the last step to the first.
        keep_order: If reversed, whether to return the outputs in the order of the inputs.

    Returns:
        The memory after the last step of every sequence, and the outputs of all steps.

    Raises:
        LayerInputError: `inputs` have too few axes, or `seq_lengths` does not fit them.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def loop(carry, steps, keep_carries):
        ...     carry, (carries, outputs) = jax.lax.scan(lambda c, x: (c + x, (c + x, c + x)), carry, steps)
        ...     return carry, outputs, carries
        >>> run_sequence(loop, jnp.zeros(1), jnp.array([[[1.0], [2.0], [3.0]]])[..., 0], num_feature_axes=0,
        ...              reverse=True)[1]
        Array([[3., 5., 6.]], dtype=float32)
    """
    n_batch = inputs.ndim - num_feature_axes - 1
    if n_batch < 0:
        raise LayerInputError(
            f"`inputs` must have a time axis and {num_feature_axes} feature axes, got {describe(inputs)}."
        )
    time_axis = 0 if time_major else n_batch
    batch = inputs.shape[1 : n_batch + 1] if time_major else inputs.shape[:n_batch]
    if seq_lengths is not None and tuple(seq_lengths.shape) != batch:
        raise LayerInputError(
            f"`seq_lengths` must have one length per sequence, shape {batch}, got {describe(seq_lengths)}."
        )
    if reverse:
        inputs = flip_sequences(inputs, seq_lengths, n_batch, time_major)
    carry, outputs, carries = loop(initial_carry, jnp.moveaxis(inputs, time_axis, 0), seq_lengths is not None)
    if seq_lengths is not None:
        carry = jax.tree.map(lambda c: _at_end(c, seq_lengths), carries)
    outputs = jax.tree.map(lambda y: jnp.moveaxis(y, 0, time_axis), outputs)
    if reverse and keep_order:
        outputs = jax.tree.map(lambda y: flip_sequences(y, seq_lengths, n_batch, time_major), outputs)
    return carry, outputs


def _at_end(carries: jax.Array, seq_lengths: jax.Array) -> jax.Array:
    last = jnp.expand_dims(seq_lengths - 1, 0)
    last = jnp.reshape(last, last.shape + (1,) * (carries.ndim - last.ndim))
    return jnp.squeeze(jnp.take_along_axis(carries, last, axis=0), axis=0)
