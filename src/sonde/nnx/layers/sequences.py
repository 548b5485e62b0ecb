"""Recurrent layers: a cell run over sequences, forward, backward, or both.

The loop is `nnx.scan`, so Variables of the cell that a step changes (random counters, statistics) are carried from step
to step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.nnx.layers.place import names_its_place
from sonde.nnx.layers.recurrent_cells import RNNCellBase
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.key_tools import split_rngs
from sonde.nnx.rng.rngs import Rngs, RngState, RngStream
from sonde.nnx.states.filters import Filter, PathParts, to_predicate
from sonde.nnx.transforms.prefixes import Carry, StateAxes
from sonde.nnx.transforms.scan import scan


class RNN(Module):
    """Runs a cell over sequences.

    Args:
        cell: The cell.
        time_major: Whether time is the first axis of inputs and outputs, instead of the axis after the batch axes.
        return_carry: Whether to return the last memory too.
        reverse: Whether to run from the last step to the first.
        keep_order: If reversed, whether outputs come in the order of the inputs.
        unroll: How many steps to compile into one iteration of the loop.
        state_axes: What happens to the cell's Variables, by filter: `nnx.Carry` (the default) carries changes from step
            to step, None starts every step from the same value, a number gives every step a slice along that axis.
        broadcast_rngs: Random streams that give every step the same keys, by filter.
        rngs: Random streams for the first memory; True makes one.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)))
        >>> layer(jnp.ones((2, 6, 3)), seq_lengths=jnp.array([6, 2])).shape
        (2, 6, 4)
    """

    def __init__(
        self,
        cell: RNNCellBase,
        *,
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        unroll: int = 1,
        state_axes: Mapping[Filter, Any] | None = None,
        broadcast_rngs: Filter = None,
        rngs: Rngs | RngStream | bool | None = True,
    ):
        self.cell = cell
        self.time_major = time_major
        self.return_carry = return_carry
        self.reverse = reverse
        self.keep_order = keep_order
        self.unroll = unroll
        self.rngs = data(_carry_stream(rngs))
        self.state_axes = None if state_axes is None else tuple(state_axes.items())
        self.broadcast_rngs = broadcast_rngs

    @names_its_place
    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Any = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Rngs | RngStream | None = None,
    ) -> Any:
        """Runs the cell.

        Args:
            inputs: `(batch..., time, features...)`, or `(time, batch..., features...)` if time-major.
            initial_carry: The initial memory; None lets the cell make it.
            seq_lengths: `(batch...)`: how long every sequence is.
            return_carry: Overrides the layer's own setting, as do the next three.
            time_major: Whether time is the first axis.
            reverse: Whether to run backward.
            keep_order: If reversed, whether outputs come in the order of the inputs.
            rngs: Random streams for the first memory.

        Returns:
            The outputs of all steps, or the memory after the last step of every sequence and the outputs.
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        axis = 0 if time_major else inputs.ndim - self.cell.num_feature_axes - 1
        if initial_carry is None and axis >= 0:
            stream = self.rngs if rngs is None else rngs
            if isinstance(stream, Rngs):
                stream = stream.carry.fork()
            initial_carry = self.cell.initialize_carry(inputs.shape[:axis] + inputs.shape[axis + 1 :], stream)
        carry, outputs = ops.run_sequence(
            self._loop,
            initial_carry,
            inputs,
            num_feature_axes=self.cell.num_feature_axes,
            seq_lengths=seq_lengths,
            time_major=time_major,
            reverse=self.reverse if reverse is None else reverse,
            keep_order=self.keep_order if keep_order is None else keep_order,
        )
        return (carry, outputs) if return_carry else outputs

    def _loop(self, carry: Any, steps: Any, keep_carries: bool) -> tuple[Any, Any, Any]:
        @scan(
            in_axes=(self._axes_of_variables(), Carry, 0),
            out_axes=(Carry, 0),
            unroll=self.unroll,
            graph=True,
            graph_updates=True,
        )
        def run(cell: RNNCellBase, carry: Any, step: Any) -> Any:
            carry, output = cell(carry, step)
            return carry, (output, carry if keep_carries else None)

        # Each broadcast stream is replaced by one of its keys while the loop runs.
        with split_rngs(self.cell, splits=1, squeeze=True, only=self.broadcast_rngs, graph=True, graph_updates=True):
            carry, (outputs, carries) = run(self.cell, carry, steps)
        return carry, outputs, carries

    def _axes_of_variables(self) -> StateAxes:
        is_broadcast = to_predicate(self.broadcast_rngs)

        def is_broadcast_stream(path: PathParts, variable: object) -> bool:
            return isinstance(variable, RngState) and is_broadcast(path, variable)

        return StateAxes(((is_broadcast_stream, None), *(self.state_axes or ()), (..., Carry)))


class Bidirectional(Module):
    """Runs one recurrent layer forward and one backward, and merges their outputs.

    Args:
        forward_rnn: Runs from the first step to the last.
        backward_rnn: Runs from the last step to the first.
        merge_fn: Merges the two outputs; concatenates them by default.
        time_major: Whether time is the first axis.
        return_carry: Whether to return both last memories too.
        rngs: Random streams for the first memories; True makes one.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> rngs = nnx.Rngs(0)
        >>> one, other = (nnx.RNN(nnx.GRUCell(3, 4, rngs=rngs)) for _ in range(2))
        >>> nnx.Bidirectional(one, other)(jnp.ones((2, 6, 3))).shape
        (2, 6, 8)
    """

    def __init__(
        self,
        forward_rnn: Callable[..., Any],
        backward_rnn: Callable[..., Any],
        *,
        merge_fn: Callable[[jax.Array, jax.Array], jax.Array] = lambda a, b: jnp.concatenate([a, b], axis=-1),
        time_major: bool = False,
        return_carry: bool = False,
        rngs: Rngs | RngStream | bool | None = True,
    ):
        self.forward_rnn = forward_rnn
        self.backward_rnn = backward_rnn
        self.merge_fn = merge_fn
        self.time_major = time_major
        self.return_carry = return_carry
        self.rngs = data(_carry_stream(rngs))

    @names_its_place
    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: tuple[Any, Any] | None = None,
        rngs: Rngs | RngStream | None = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Runs both layers.

        Args:
            inputs: `(batch..., time, features...)`, or `(time, batch..., features...)` if time-major.
            initial_carry: Both initial memories; None lets the cells make them.
            rngs: Random streams for the first memories.
            seq_lengths: `(batch...)`: how long every sequence is.
            return_carry: Overrides the layer's own setting.
            time_major: Overrides the layer's own setting.
            reverse: Without effect: both directions are run.
            keep_order: Without effect: outputs come in the order of the inputs.

        Returns:
            The merged outputs, or both last memories and the merged outputs.
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        stream = self.rngs if rngs is None else rngs
        if isinstance(stream, Rngs):
            stream = stream.carry.fork()
        forward_carry, backward_carry = initial_carry if initial_carry is not None else (None, None)
        common = {"rngs": stream, "seq_lengths": seq_lengths, "return_carry": True, "time_major": time_major}
        forward_carry, forward = self.forward_rnn(inputs, initial_carry=forward_carry, reverse=False, **common)
        backward_carry, backward = self.backward_rnn(
            inputs, initial_carry=backward_carry, reverse=True, keep_order=True, **common
        )
        outputs = jax.tree.map(self.merge_fn, forward, backward)
        return ((forward_carry, backward_carry), outputs) if return_carry else outputs


def _carry_stream(rngs: Rngs | RngStream | bool | None) -> RngStream | None:
    if rngs is True:
        return RngStream(0, tag="carry")
    if rngs is None or rngs is False:
        return None
    if isinstance(rngs, Rngs):
        return rngs.carry.fork()
    if isinstance(rngs, RngStream):
        return rngs
    raise TypeError(
        f"A recurrent layer takes an nnx.Rngs, an nnx.RngStream, a bool or None as `rngs`, got {type(rngs)}."
    )
