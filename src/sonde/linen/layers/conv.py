"""Convolutions: `Conv`, `ConvLocal`, `ConvTranspose`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.linen.dtypes import promote_dtype
from sonde.linen.layers.parameters import kernel_and_bias, options_of
from sonde.linen.modules.attach import describe
from sonde.linen.modules.methods import compact
from sonde.linen.modules.module import Module
from sonde.ops.default_initializers import default_bias_init, default_kernel_init
from sonde.ops.layer_options import CONV, CONV_LOCAL, CONV_TRANSPOSE


def _sizes(kernel_size: int | Sequence[int]) -> tuple[int, ...]:
    """The size of the window along each spatial axis; one number means one spatial axis."""
    return (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)


class _Conv(Module):
    """The base of convolutions with and without shared weights.

    Attributes:
        features: The number of output features.
        kernel_size: The size of the window along each spatial axis; one number means one spatial axis.
        strides: The step of the window, one number or one for each spatial axis.
        padding: `"SAME"`, `"VALID"`, `"CIRCULAR"`, `"REFLECT"`, `"CAUSAL"` (one spatial axis), or numbers.
        input_dilation: The spread of the inputs.
        kernel_dilation: The spread of the window.
        feature_group_count: The number of groups into which features are divided.
        use_bias: Whether to add a bias.
        mask: Multiplies the kernel.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype of the parameters.
        precision: As in `jax.lax.conv_general_dilated`.
        kernel_init: Initializer of the kernel.
        bias_init: Initializer of the bias.
        promote_dtype: How arrays are cast to `dtype`.
        conv_general_dilated: A replacement for `jax.lax.conv_general_dilated`.
        conv_general_dilated_cls: Makes one, such as a module class.
    """

    features: int
    kernel_size: int | Sequence[int]
    strides: int | Sequence[int] | None = 1
    padding: Any = "SAME"
    input_dilation: int | Sequence[int] | None = 1
    kernel_dilation: int | Sequence[int] | None = 1
    feature_group_count: int = 1
    use_bias: bool = True
    mask: Any = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Callable[..., Any] = default_kernel_init
    bias_init: Callable[..., Any] = default_bias_init
    promote_dtype: Callable[..., Any] = promote_dtype
    conv_general_dilated: Callable[..., Any] | None = None
    conv_general_dilated_cls: Any = None


class Conv(_Conv):
    """A convolution over inputs with features last, any number of batch axes first.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> y, _ = nn.Conv(4, kernel_size=(3, 3), strides=2).init_with_output(jax.random.key(0), jnp.ones((1, 8, 8, 3)))
        >>> y.shape
        (1, 4, 4, 4)
    """

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Convolves the inputs."""
        size = _sizes(self.kernel_size)
        n_in = jnp.shape(inputs)[-1]
        if n_in % self.feature_group_count:
            raise ValueError(
                f"{describe(self)}: feature_group_count={self.feature_group_count} does not divide the {n_in} "
                "input features"
            )
        shape = (*size, n_in // self.feature_group_count, self.features)
        kernel, bias = kernel_and_bias(self, shape, (self.features,))
        return ops.conv(inputs, kernel, bias, **options_of(self, CONV))


class ConvLocal(_Conv):
    """A convolution with a separate kernel at every position; features cannot be divided into groups."""

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Convolves the inputs."""
        if self.feature_group_count != 1:
            raise NotImplementedError(
                f"{describe(self)}: feature_group_count={self.feature_group_count}, but without shared weights "
                "features cannot be divided into groups; use Conv"
            )
        options = options_of(self, CONV_LOCAL)
        size = _sizes(self.kernel_size)
        window = {name: options[name] for name in ("strides", "padding", "input_dilation", "kernel_dilation")}
        shape = ops.conv_local_kernel_shape(jnp.shape(inputs), self.features, kernel_size=size, **window)
        kernel, bias = kernel_and_bias(self, shape, (*shape[:-2], self.features))
        return ops.conv_local(inputs, kernel, bias, kernel_size=size, **options)


class ConvTranspose(Module):
    """A transposed convolution: the inputs are spread apart by `strides`, which enlarges them.

    Attributes:
        strides: By how much to enlarge.
        padding: `"SAME"`, `"VALID"`, `"CIRCULAR"`, or numbers.
        precision: As in `jax.lax.conv_transpose`.
        transpose_kernel: Whether to flip the kernel and swap its last axes: the gradient of a convolution.
        preferred_element_type: As in `jax.lax.conv_transpose`.
        The others are those of `nn.Conv`.
    """

    features: int
    kernel_size: int | Sequence[int]
    strides: Sequence[int] | None = None
    padding: Any = "SAME"
    kernel_dilation: Sequence[int] | None = None
    use_bias: bool = True
    mask: Any = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Callable[..., Any] = default_kernel_init
    bias_init: Callable[..., Any] = default_bias_init
    transpose_kernel: bool = False
    promote_dtype: Callable[..., Any] = promote_dtype
    preferred_element_type: Any = None

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Convolves the inputs."""
        size = _sizes(self.kernel_size)
        n_in = jnp.shape(inputs)[-1]
        ends = (self.features, n_in) if self.transpose_kernel else (n_in, self.features)
        kernel, bias = kernel_and_bias(self, (*size, *ends), (self.features,))
        return ops.conv_transpose(inputs, kernel, bias, **options_of(self, CONV_TRANSPOSE))
