"""Recurrent cells: one step from a memory and an input to a new memory and an output.

The arithmetic is in `sonde.ops.recurrent`, with a site at every gate. `RNN` runs a cell over a sequence.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.errors import LayerInputError
from sonde.nnx.layers.linear import Linear
from sonde.nnx.layers.parameters import NO_METADATA, Init, Metadata
from sonde.nnx.layers.place import names_its_place
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.rngs import Rngs, RngStream
from sonde.ops.default_initializers import (
    default_bias_init,
    default_kernel_init,
    orthogonal_any_dtype,
    zeros,
)
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_dtype

Pair = tuple[jax.Array, jax.Array]
MakeMap = Callable[[int], Linear]


class RNNCellBase(Module):
    """The base of recurrent cells.

    A cell is called as `new_carry, output = cell(carry, inputs)`, makes its initial memory in `initialize_carry`, and
    says in `num_feature_axes` how many axes of its inputs are features.
    """

    def __call__(self, carry: Any, inputs: jax.Array) -> tuple[Any, jax.Array]:
        """Runs one step: from the memory and the step's inputs to the new memory and the output."""
        raise TypeError(f"{type(self).__name__} must define __call__(carry, inputs) to be a cell.")

    def initialize_carry(
        self, input_shape: tuple[int, ...], rngs: Rngs | RngStream | None = None, carry_init: Init | None = None
    ) -> Any:
        """Makes the initial memory.

        Args:
            input_shape: Shape of one step's inputs.
            rngs: Random streams or one stream.
            carry_init: Initializer of the memory.
        """
        raise TypeError(
            f"{type(self).__name__} must define initialize_carry(input_shape, rngs) to be a recurrent cell."
        )

    @property
    def num_feature_axes(self) -> int:
        """How many axes of the inputs are features."""
        raise TypeError(f"{type(self).__name__} must define num_feature_axes to be a cell.")


class _VectorCell(RNNCellBase):
    """The base of cells whose memory is one or more vectors; `_parts` says how many."""

    _parts = 1
    hidden_features: int
    dtype: Dtype | None
    param_dtype: Dtype
    promote_dtype: PromoteDtype
    carry_init: Init | None
    rngs: RngStream | None

    def _keep(self, rngs: Rngs, keep_rngs: bool, carry_init: Init | None) -> None:
        if keep_rngs:
            warnings.warn(
                "keep_rngs=True is an old way to draw the first carry: give `rngs` to initialize_carry, and leave out "
                "keep_rngs.",
                UserWarning,
                stacklevel=3,
            )
        if carry_init is not None:
            warnings.warn(
                "carry_init of the constructor is an old way to say how the first carry is made: give it to "
                "initialize_carry. Two cells that differ in carry_init alone have different graphdefs.",
                UserWarning,
                stacklevel=3,
            )
        self.rngs = data(rngs.carry.fork() if keep_rngs else None)
        self.carry_init = carry_init

    def _map(self, n_in: int, n_out: int, **options: Any) -> Linear:
        """A linear map that computes in the cell's dtypes."""
        dtypes = {"dtype": self.dtype, "param_dtype": self.param_dtype, "promote_dtype": self.promote_dtype}
        return Linear(n_in, n_out, **dtypes, **options)

    @names_its_place
    def initialize_carry(
        self, input_shape: tuple[int, ...], rngs: Rngs | RngStream | None = None, carry_init: Init | None = None
    ) -> Any:
        """Makes the initial memory: one or two arrays `(batch..., hidden_features)`, zeros by default.

        Args:
            input_shape: `(batch..., in_features)`.
            rngs: Random streams or one stream.
            carry_init: Initializer of the memory.
        """
        source = rngs if rngs is not None else self.rngs
        if source is None:
            raise LayerInputError(
                "`initialize_carry` draws from `rngs`, but got none: pass an nnx.Rngs or an nnx.RngStream."
            )
        if isinstance(source, Rngs):
            source = source.carry
        init = carry_init or self.carry_init or zeros
        shape = (*input_shape[:-1], self.hidden_features)
        parts = tuple(init(source(), shape, self.param_dtype) for _ in range(self._parts))
        return parts if self._parts > 1 else parts[0]

    @property
    def num_feature_axes(self) -> int:
        """One: the last axis of the inputs."""
        return 1


class _GatedCell(_VectorCell):
    """The base of cells with gates: their arguments, and the linear maps made from these."""

    # Whether a gate's bias belongs to its map of the inputs; if not, to its map of the memory.
    _bias_is_of_inputs = False

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        gate_fn: Callable[..., Any] = jax.nn.sigmoid,
        activation_fn: Callable[..., Any] = jnp.tanh,
        kernel_init: Init = default_kernel_init,
        recurrent_kernel_init: Init = orthogonal_any_dtype,
        bias_init: Init = default_bias_init,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        carry_init: Init | None = None,
        promote_dtype: PromoteDtype = promote_dtype,
        keep_rngs: bool = False,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        recurrent_kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.gate_fn = gate_fn
        self.activation_fn = activation_fn
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.promote_dtype = promote_dtype

        def linear(n_gates: int, n_in: int, init: Init, metadata: Metadata, use_bias: bool) -> Linear:
            return self._map(
                n_in,
                n_gates * hidden_features,
                use_bias=use_bias,
                kernel_init=init,
                bias_init=bias_init,
                rngs=rngs,
                kernel_metadata=metadata,
                bias_metadata=bias_metadata,
            )

        def of_inputs(n_gates: int) -> Linear:
            return linear(n_gates, in_features, kernel_init, kernel_metadata, self._bias_is_of_inputs)

        def of_memory(n_gates: int) -> Linear:
            use_bias = not self._bias_is_of_inputs
            return linear(n_gates, hidden_features, recurrent_kernel_init, recurrent_kernel_metadata, use_bias)

        # Before the maps: if there is no stream for carries, both draw from one, and the order decides what they get.
        self._keep(rngs, keep_rngs, carry_init)
        self._make_maps(of_inputs, of_memory)

    def _make_maps(self, of_inputs: MakeMap, of_memory: MakeMap) -> None:
        """Makes the maps in the order in which their initial values are drawn; each for a given number of gates."""
        raise NotImplementedError


class LSTMCell(_GatedCell):
    """A long short-term memory, with a separate matrix for every gate.

    Args:
        in_features: Number of input features.
        hidden_features: Number of features of the memory and the output.
        gate_fn: Activation of the gates.
        activation_fn: Activation of the candidate and of the memory.
        kernel_init: Initializer of the kernels for the inputs.
        recurrent_kernel_init: Initializer of the kernels for the memory.
        bias_init: Initializer of the biases.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype that parameters and memory are stored in.
        carry_init: Initializer of the memory; prefer to pass it to `initialize_carry`.
        promote_dtype: How inputs and parameters are cast to `dtype`.
        keep_rngs: Keep a stream for `initialize_carry`; prefer to pass one there.
        rngs: Random streams for the initial parameters.
        kernel_metadata: Metadata of the kernels for the inputs.
        recurrent_kernel_metadata: Metadata of the kernels for the memory.
        bias_metadata: Metadata of the biases.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> cell = nnx.LSTMCell(3, 4, rngs=nnx.Rngs(0))
        >>> carry = cell.initialize_carry((2, 3), nnx.Rngs(0))
        >>> carry, y = cell(carry, jnp.ones((2, 3)))
        >>> y.shape
        (2, 4)
    """

    _parts = 2

    def _make_maps(self, of_inputs: MakeMap, of_memory: MakeMap) -> None:
        self.ii, self.if_, self.ig, self.io = (of_inputs(1) for _ in range(4))
        self.hi, self.hf, self.hg, self.ho = (of_memory(1) for _ in range(4))

    @names_its_place
    def __call__(self, carry: Pair, inputs: jax.Array) -> tuple[Pair, jax.Array]:  # type: ignore[override]
        """Runs one step on inputs `(batch..., in_features)`; returns the new carry and the output.

        The carry is the memory and the last output, each `(batch..., hidden_features)`.
        """
        ops.check_carry(carry, inputs, self.hidden_features, parts=2)
        c, h = carry
        return ops.lstm(
            c,
            self.ii(inputs) + self.hi(h),
            self.if_(inputs) + self.hf(h),
            self.ig(inputs) + self.hg(h),
            self.io(inputs) + self.ho(h),
            gate_fn=self.gate_fn,
            activation_fn=self.activation_fn,
        )


class OptimizedLSTMCell(_GatedCell):
    """A long short-term memory with one matrix for all gates: fewer, larger products than `LSTMCell`.

    Arguments and calls are those of `LSTMCell`; parameters are laid out differently.

    Example:
        >>> from sonde import nnx
        >>> cell = nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0))
        >>> cell.dense_h.kernel.shape
        (4, 16)
    """

    _parts = 2

    def _make_maps(self, of_inputs: MakeMap, of_memory: MakeMap) -> None:
        self.dense_i, self.dense_h = of_inputs(4), of_memory(4)

    @names_its_place
    def __call__(self, carry: Pair, inputs: jax.Array) -> tuple[Pair, jax.Array]:  # type: ignore[override]
        """Runs one step; see `LSTMCell`."""
        ops.check_carry(carry, inputs, self.hidden_features, parts=2)
        c, h = carry
        gates = ops.split_gates(self.dense_i(inputs) + self.dense_h(h), 4)
        return ops.lstm(c, *gates, gate_fn=self.gate_fn, activation_fn=self.activation_fn)


class GRUCell(_GatedCell):
    """A gated recurrent unit.

    Args:
        hidden_features: Number of features of the state.
        activation_fn: Activation of the candidate.
        kernel_init: Initializer of the kernel for the inputs.
        recurrent_kernel_init: Initializer of the kernel for the state.
        bias_init: Initializer of the bias.
        param_dtype: The dtype that parameters and state are stored in.
        carry_init: Initializer of the state; prefer to pass it to `initialize_carry`.
        kernel_metadata: Metadata of the kernel for the inputs.
        recurrent_kernel_metadata: Metadata of the kernel for the state.
        bias_metadata: Metadata of the bias.
        The others are those of `nnx.LSTMCell`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> cell = nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))
        >>> h, y = cell(cell.initialize_carry((2, 3), nnx.Rngs(0)), jnp.ones((2, 3)))
        >>> y.shape
        (2, 4)
    """

    _bias_is_of_inputs = True

    def _make_maps(self, of_inputs: MakeMap, of_memory: MakeMap) -> None:
        self.dense_i, self.dense_h = of_inputs(3), of_memory(3)

    @names_its_place
    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Runs one step on inputs `(batch..., in_features)`; returns the new state, as the carry and as the output."""
        ops.check_carry(carry, inputs, self.hidden_features, parts=1)
        r_i, z_i, n_i = ops.split_gates(self.dense_i(inputs), 3)
        r_h, z_h, n_h = ops.split_gates(self.dense_h(carry), 3)
        return ops.gru(carry, r_i + r_h, z_i + z_h, n_i, n_h, gate_fn=self.gate_fn, activation_fn=self.activation_fn)


class SimpleCell(_VectorCell):
    """The simplest recurrent cell: an activation of a linear map of inputs and state.

    Args:
        in_features: Number of input features.
        dtype: The dtype to compute in.
        residual: Add the state before the activation.
        activation_fn: The activation.
        promote_dtype: How inputs and parameters are cast to `dtype`.
        keep_rngs: Keep a stream for `initialize_carry`; prefer to pass one there.
        rngs: Random streams for the initial parameters.
        The others are those of `nnx.GRUCell`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> cell = nnx.SimpleCell(3, 4, rngs=nnx.Rngs(0))
        >>> h, y = cell(jnp.zeros((2, 4)), jnp.ones((2, 3)))
        >>> y.shape
        (2, 4)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        *,
        dtype: Dtype | None = jnp.float32,
        param_dtype: Dtype = jnp.float32,
        carry_init: Init | None = None,
        residual: bool = False,
        activation_fn: Callable[..., Any] = jnp.tanh,
        kernel_init: Init = default_kernel_init,
        recurrent_kernel_init: Init = orthogonal_any_dtype,
        bias_init: Init = default_bias_init,
        promote_dtype: PromoteDtype = promote_dtype,
        keep_rngs: bool = False,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        recurrent_kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        self.in_features = in_features
        self.hidden_features = hidden_features
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.residual = residual
        self.activation_fn = activation_fn
        self.promote_dtype = promote_dtype
        self._keep(rngs, keep_rngs, carry_init)
        of_memory = {"kernel_init": recurrent_kernel_init, "kernel_metadata": recurrent_kernel_metadata}
        of_bias = {"bias_init": bias_init, "bias_metadata": bias_metadata}
        of_inputs = {"kernel_init": kernel_init, "kernel_metadata": kernel_metadata, **of_bias}
        # The state's map is drawn first, as in Flax, so that initial values are the same.
        self.dense_h = self._map(hidden_features, hidden_features, use_bias=False, rngs=rngs, **of_memory)
        self.dense_i = self._map(in_features, hidden_features, rngs=rngs, **of_inputs)

    @names_its_place
    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Runs one step on inputs `(batch..., in_features)`; returns the new state, as the carry and as the output."""
        ops.check_carry(carry, inputs, self.hidden_features, parts=1)
        total = self.dense_i(inputs) + self.dense_h(carry)
        return ops.simple_rnn(carry, total, residual=self.residual, activation_fn=self.activation_fn)
