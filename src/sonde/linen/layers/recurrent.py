"""Recurrent cells: `LSTMCell`, `OptimizedLSTMCell`, `ConvLSTMCell`, `GRUCell`, `MGUCell`, `SimpleCell`.

Each gate has its own linear maps, named by two letters: the source (`i`nputs or `h`idden state) and the gate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.linen.layers.conv import Conv
from sonde.linen.layers.linear import Dense
from sonde.linen.layers.parameters import kernel_and_bias
from sonde.linen.modules.methods import compact, nowrap
from sonde.linen.modules.module import Module
from sonde.ops.default_initializers import default_kernel_init
from sonde.ops.initializers import ones, orthogonal, zeros

default_recurrent_init = orthogonal()


class RNNCellBase(Module):
    """The base class of recurrent cells.

    A cell is called as `cell(carry, inputs)` and returns the new carry and an output.
    """

    @nowrap
    def initialize_carry(self, rng: jax.Array, input_shape: tuple[int, ...]) -> Any:
        """The initial carry, for inputs of a shape without the time axis."""
        raise NotImplementedError(f"cell {type(self).__name__} has no initial carry: define initialize_carry")

    @property
    def num_feature_axes(self) -> int:
        """How many of the last axes of the inputs are features."""
        raise NotImplementedError(
            f"cell {type(self).__name__} does not say how many feature axes it has: define num_feature_axes"
        )


class _VectorCell(RNNCellBase):
    """The base of cells with linear maps on one feature axis."""

    @property
    def num_feature_axes(self) -> int:
        """One."""
        return 1

    @nowrap
    def initialize_carry(self: Any, rng: jax.Array, input_shape: tuple[int, ...]) -> Any:
        """The initial hidden state."""
        return self.carry_init(rng, (*input_shape[:-1], self.features), self.param_dtype)

    @nowrap
    def _map(
        self: Any, name: str, *, width: int, recurrent: bool, use_bias: bool, bias_init: Callable[..., Any]
    ) -> Dense:
        """A linear map as wide as the carry; a carry that the user passes need not have `features` features."""
        return Dense(
            width,
            name=name,
            use_bias=use_bias,
            kernel_init=self.recurrent_kernel_init if recurrent else self.kernel_init,
            bias_init=bias_init,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )


def _memory_and_hidden(cell: Any, rng: jax.Array, input_shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    shape = (*input_shape[:-1], cell.features)
    first, second = jax.random.split(rng)
    return cell.carry_init(first, shape, cell.param_dtype), cell.carry_init(second, shape, cell.param_dtype)


class _GatedCell(_VectorCell):
    """The fields of LSTM cells and of `GRUCell`.

    Attributes:
        features: The number of features.
        gate_fn: The activation of the gates.
        activation_fn: The activation of the candidate and of the memory.
        kernel_init: Initializer of the kernels from the inputs.
        recurrent_kernel_init: Initializer of the kernels from the hidden state.
        bias_init: Initializer of the biases.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype of the parameters.
        carry_init: Initializer of the carry.
    """

    features: int
    gate_fn: Callable[..., Any] = jax.nn.sigmoid
    activation_fn: Callable[..., Any] = jnp.tanh
    kernel_init: Callable[..., Any] = default_kernel_init
    recurrent_kernel_init: Callable[..., Any] = default_recurrent_init
    bias_init: Callable[..., Any] = zeros
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_init: Callable[..., Any] = zeros


class _LSTM(_GatedCell):
    """The carry of the two LSTM cells."""

    @nowrap
    def initialize_carry(self, rng: jax.Array, input_shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """The initial memory and hidden state."""
        return _memory_and_hidden(self, rng, input_shape)


class LSTMCell(_LSTM):
    """A long short-term memory, with eight linear maps."""

    @compact
    def __call__(self, carry: tuple[jax.Array, jax.Array], inputs: jax.Array) -> tuple[Any, jax.Array]:
        """Runs one step; the carry is the memory and the hidden state."""
        memory, hidden = carry
        of_gate = functools.partial(self._map, width=hidden.shape[-1], bias_init=self.bias_init)
        from_inputs = functools.partial(of_gate, recurrent=False, use_bias=False)
        from_hidden = functools.partial(of_gate, recurrent=True, use_bias=True)
        gates = [from_inputs(f"i{gate}")(inputs) + from_hidden(f"h{gate}")(hidden) for gate in "ifgo"]
        return ops.lstm(memory, *gates, gate_fn=self.gate_fn, activation_fn=self.activation_fn)


class _Parameters(Module):
    """The parameters of a linear map without the map, for cells that compute several maps in one product."""

    features: int
    use_bias: bool
    param_dtype: Any
    kernel_init: Callable[..., Any]
    bias_init: Callable[..., Any]

    @compact
    def __call__(self, n_in: int) -> tuple[Any, Any]:
        """The kernel, and the bias or None."""
        return kernel_and_bias(self, (n_in, self.features), (self.features,))


class OptimizedLSTMCell(_LSTM):
    """A long short-term memory with the parameters of `LSTMCell`, in two products."""

    @compact
    def __call__(self, carry: tuple[jax.Array, jax.Array], inputs: jax.Array) -> tuple[Any, jax.Array]:
        """Runs one step; the carry is the memory and the hidden state."""
        memory, hidden = carry
        width = hidden.shape[-1]

        def made(x: jax.Array, name: str, use_bias: bool, kernel_init: Callable[..., Any]) -> tuple[Any, Any]:
            parameters = _Parameters(width, use_bias, self.param_dtype, kernel_init, self.bias_init, name=name)
            return parameters(x.shape[-1])

        input_kernels, hidden_kernels, biases = [], [], []
        for gate in "ifgo":  # gate by gate: the order in which Flax makes them
            input_kernels.append(made(inputs, "i" + gate, False, self.kernel_init)[0])
            kernel, bias = made(hidden, "h" + gate, True, self.recurrent_kernel_init)
            hidden_kernels.append(kernel)
            biases.append(bias)
        of_hidden = ops.dense_gates(hidden, hidden_kernels, biases, dtype=self.dtype)
        of_inputs = ops.dense_gates(inputs, input_kernels, None, dtype=self.dtype)
        gates = [h + i for h, i in zip(of_hidden, of_inputs)]
        return ops.lstm(memory, *gates, gate_fn=self.gate_fn, activation_fn=self.activation_fn)


class GRUCell(_GatedCell):
    """A gated recurrent unit; fields as in `LSTMCell`."""

    @compact
    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Runs one step; the carry is the hidden state."""
        of_gate = functools.partial(self._map, width=carry.shape[-1], bias_init=self.bias_init)
        from_inputs = functools.partial(of_gate, recurrent=False, use_bias=True)
        from_hidden = functools.partial(of_gate, recurrent=True)
        r = from_inputs("ir")(inputs) + from_hidden("hr", use_bias=False)(carry)
        z = from_inputs("iz")(inputs) + from_hidden("hz", use_bias=False)(carry)
        n_input, n_hidden = from_inputs("in")(inputs), from_hidden("hn", use_bias=True)(carry)
        return ops.gru(carry, r, z, n_input, n_hidden, gate_fn=self.gate_fn, activation_fn=self.activation_fn)


class MGUCell(_VectorCell):
    """A minimal gated unit.

    Attributes:
        forget_bias_init: Initializer of the bias of the gate.
        activation_bias_init: Initializer of the biases of the candidate.
        reset_gate: Whether the gate also scales the contribution of the hidden state to the candidate.
        features, gate_fn, activation_fn, kernel_init, recurrent_kernel_init, dtype, param_dtype, carry_init: As in
            `LSTMCell`.
    """

    features: int
    gate_fn: Callable[..., Any] = jax.nn.sigmoid
    activation_fn: Callable[..., Any] = jnp.tanh
    kernel_init: Callable[..., Any] = default_kernel_init
    recurrent_kernel_init: Callable[..., Any] = default_recurrent_init
    forget_bias_init: Callable[..., Any] = ones
    activation_bias_init: Callable[..., Any] = zeros
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_init: Callable[..., Any] = zeros
    reset_gate: bool = True

    @compact
    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Runs one step; the carry is the hidden state."""
        of_gate = functools.partial(self._map, width=carry.shape[-1])
        from_inputs = functools.partial(of_gate, recurrent=False, use_bias=True)
        from_hidden = functools.partial(of_gate, recurrent=True, bias_init=self.activation_bias_init)
        forget = from_inputs("if", bias_init=self.forget_bias_init)(inputs) + from_hidden("hf", use_bias=False)(carry)
        n_hidden = from_hidden("hn", use_bias=self.reset_gate)(carry)
        n_input = from_inputs("in", bias_init=self.activation_bias_init)(inputs)
        return ops.mgu(
            carry,
            forget,
            n_input,
            n_hidden,
            reset_gate=self.reset_gate,
            gate_fn=self.gate_fn,
            activation_fn=self.activation_fn,
        )


class SimpleCell(_VectorCell):
    """The simplest recurrent cell.

    Attributes:
        residual: Whether the state is added before the activation.
        features, activation_fn, kernel_init, recurrent_kernel_init, bias_init, dtype, param_dtype, carry_init: As in
            `LSTMCell`.
    """

    features: int
    activation_fn: Callable[..., Any] = jnp.tanh
    kernel_init: Callable[..., Any] = default_kernel_init
    recurrent_kernel_init: Callable[..., Any] = default_recurrent_init
    bias_init: Callable[..., Any] = zeros
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_init: Callable[..., Any] = zeros
    residual: bool = False

    @compact
    def __call__(self, carry: jax.Array, inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Runs one step; the carry is the hidden state."""
        of_gate = functools.partial(self._map, width=carry.shape[-1], bias_init=self.bias_init)
        from_hidden = of_gate("h", recurrent=True, use_bias=False)
        from_inputs = of_gate("i", recurrent=False, use_bias=True)
        total = from_inputs(inputs) + from_hidden(carry)
        return ops.simple_rnn(carry, total, residual=self.residual, activation_fn=self.activation_fn)


class ConvLSTMCell(RNNCellBase):
    """A long short-term memory with convolutions for linear maps.

    Attributes:
        features: The number of features.
        kernel_size: The size of the window along each spatial axis.
        strides: The step of the window.
        padding: As in `Conv`.
        use_bias: Whether the convolutions have biases.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype of the parameters.
        carry_init: Initializer of the carry.
    """

    features: int
    kernel_size: Sequence[int]
    strides: Sequence[int] | None = None
    padding: Any = "SAME"
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    carry_init: Callable[..., Any] = zeros

    @property
    def num_feature_axes(self) -> int:
        """The spatial axes and the features."""
        return len(self.kernel_size) + 1

    @nowrap
    def initialize_carry(self, rng: jax.Array, input_shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
        """The initial memory and hidden state."""
        return _memory_and_hidden(self, rng, input_shape)

    @compact
    def __call__(self, carry: tuple[jax.Array, jax.Array], inputs: jax.Array) -> tuple[Any, jax.Array]:
        """Runs one step; the carry is the memory and the hidden state."""
        memory, hidden = carry
        convolve = functools.partial(
            Conv,
            features=4 * self.features,
            kernel_size=self.kernel_size,
            strides=self.strides,
            padding=self.padding,
            use_bias=self.use_bias,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
        )
        return ops.conv_lstm(memory, convolve(name="ih")(inputs) + convolve(name="hh")(hidden))
