"""Cells run over sequences: `RNN` and `Bidirectional`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from sonde.linen.layers.recurrent import RNNCellBase
from sonde.linen.modules.module import Module
from sonde.linen.transforms.looped import scan
from sonde.linen.variables.filters import Filter
from sonde.linen.variables.frozen_dict import FrozenDict
from sonde.ops.sequence import flip_sequences, run_sequence


class RNN(Module):
    """Runs a cell over a sequence.

    Attributes:
        cell: The cell.
        time_major: Whether time is the first axis; otherwise it comes after the batch axes.
        return_carry: Whether to return the last carry too.
        reverse: Whether to run from the last step to the first.
        keep_order: Whether outputs of a reversed run are in the order of the inputs.
        unroll: As in `jax.lax.scan`.
        variable_axes, variable_broadcast, variable_carry, split_rngs: As in `nn.scan`, for the cell.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> y, _ = nn.RNN(nn.GRUCell(4)).init_with_output(jax.random.key(0), jnp.ones((2, 5, 3)))
        >>> y.shape
        (2, 5, 4)
    """

    cell: RNNCellBase
    time_major: bool = False
    return_carry: bool = False
    reverse: bool = False
    keep_order: bool = False
    unroll: int = 1
    variable_axes: Mapping[Any, Any] = FrozenDict()
    variable_broadcast: Filter = "params"
    variable_carry: Filter = False
    split_rngs: Mapping[Any, bool] = FrozenDict({"params": False})

    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Any = None,
        init_key: jax.Array | None = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Runs the cell.

        Args:
            inputs: `(batch..., time, features...)`, or with time first.
            initial_carry: The initial carry; made by the cell if None.
            init_key: The random key for the initial carry.
            seq_lengths: The length of each sequence; the carry returned is the one at its end.
            return_carry: Overrides the field of this name.
            time_major: Overrides the field of this name.
            reverse: Overrides the field of this name.
            keep_order: Overrides the field of this name.

        Returns:
            The outputs, or a pair of the last carry and the outputs.
        """
        time_major = _chosen(time_major, self.time_major)
        n_features = self.cell.num_feature_axes
        if initial_carry is None:
            one_step = list(inputs.shape)
            del one_step[0 if time_major else -n_features - 1]
            key = jax.random.key(0) if init_key is None else init_key
            initial_carry = self.cell.initialize_carry(key, tuple(one_step))

        def loop(carry: Any, steps: Any, keep_carries: bool) -> tuple[Any, Any, Any]:
            def step(cell: Any, carry: Any, x: Any) -> tuple[Any, Any]:
                carry, y = cell(carry, x)
                return carry, (y, carry if keep_carries else None)

            run = scan(
                step,
                in_axes=0,
                out_axes=0,
                unroll=self.unroll,
                variable_axes=self.variable_axes,
                variable_broadcast=self.variable_broadcast,
                variable_carry=self.variable_carry,
                split_rngs=self.split_rngs,
            )
            carry, (outputs, carries) = run(self.cell, carry, steps)
            return carry, outputs, carries

        carry, outputs = run_sequence(
            loop,
            initial_carry,
            inputs,
            num_feature_axes=n_features,
            seq_lengths=seq_lengths,
            time_major=time_major,
            reverse=_chosen(reverse, self.reverse),
            keep_order=_chosen(keep_order, self.keep_order),
        )
        return (carry, outputs) if _chosen(return_carry, self.return_carry) else outputs


def _chosen(argument: bool | None, field: bool) -> bool:
    return field if argument is None else argument


def _concatenate(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.concatenate([a, b], axis=-1)


class Bidirectional(Module):
    """Runs one RNN forwards and another one backwards and merges their outputs.

    Attributes:
        forward_rnn: The RNN that runs forwards.
        backward_rnn: The RNN that is given the sequence reversed.
        merge_fn: Merges the outputs of both; by default their features are concatenated.
        time_major: Whether time is the first axis.
        return_carry: Whether to return both last carries too.
    """

    forward_rnn: RNN
    backward_rnn: RNN
    merge_fn: Callable[[Any, Any], Any] = _concatenate
    time_major: bool = False
    return_carry: bool = False

    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Any = None,
        init_key: jax.Array | None = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Runs both; arguments as in `RNN`, with pairs of carries. `reverse` and `keep_order` have no effect."""
        del reverse, keep_order
        time_major = self.time_major if time_major is None else time_major
        return_carry = self.return_carry if return_carry is None else return_carry
        carries = (None, None) if initial_carry is None else initial_carry
        keys = jax.random.split(jax.random.key(0) if init_key is None else init_key)
        outputs, last = [], []
        for rnn, carry, key, backward in zip((self.forward_rnn, self.backward_rnn), carries, keys, (False, True)):
            last_carry, output = rnn(
                inputs,
                initial_carry=carry,
                init_key=key,
                seq_lengths=seq_lengths,
                return_carry=True,
                time_major=time_major,
                reverse=backward,
                keep_order=backward,
            )
            last.append(last_carry)
            outputs.append(output)
        merged = jax.tree.map(self.merge_fn, *outputs)
        return (tuple(last), merged) if return_carry else merged


__all__ = ["RNN", "Bidirectional", "flip_sequences"]
