"""Convolutions, features last: plain and transposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import PrecisionLike

from sonde import ops
from sonde.errors import LayerInputError
from sonde.nnx.layers.parameters import NO_METADATA, Init, Metadata, new_param, optional_param, value_of
from sonde.nnx.layers.place import names_its_place
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.rngs import Rngs
from sonde.ops.default_initializers import default_bias_init, default_kernel_init
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_dtype
from sonde.ops.layer_options import CONV, CONV_TRANSPOSE, options_of
from sonde.ops.padding import Padding
from sonde.ops.sharding import OutSharding


class Conv(Module):
    """A convolution.

    Args:
        in_features: Number of input features.
        out_features: Number of output features.
        kernel_size: One number per spatial axis; a single number means one spatial axis.
        strides: Step of the window, one number or one per spatial axis.
        padding: `'SAME'`, `'VALID'`, `'CIRCULAR'`, `'REFLECT'`, `'CAUSAL'`, a number, or one number or (low, high) pair
            per spatial axis.
        input_dilation: Dilation factor of the inputs.
        kernel_dilation: Dilation factor of the kernel.
        feature_group_count: Number of independent groups that the features are split into.
        use_bias: Whether to add a bias.
        mask: Multiplies the kernel; has its shape.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype that parameters are stored in.
        precision: As in `jax.lax.conv_general_dilated`.
        kernel_init: Initializer of the kernel.
        bias_init: Initializer of the bias.
        conv_general_dilated: The convolution to use.
        promote_dtype: How inputs and parameters are cast to `dtype`.
        preferred_element_type: As in `jax.lax.conv_general_dilated`.
        rngs: Random streams for the initial parameters.
        kernel_metadata: Metadata of the kernel's Variable.
        bias_metadata: Metadata of the bias's Variable.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.Conv(3, 4, (3, 3), strides=2, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 8, 8, 3))).shape
        (2, 4, 4, 4)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] | None = 1,
        *,
        padding: Padding = "SAME",
        input_dilation: int | Sequence[int] | None = 1,
        kernel_dilation: int | Sequence[int] | None = 1,
        feature_group_count: int = 1,
        use_bias: bool = True,
        mask: jax.Array | None = None,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Init = default_kernel_init,
        bias_init: Init = default_bias_init,
        conv_general_dilated: Callable[..., jax.Array] = lax.conv_general_dilated,
        promote_dtype: PromoteDtype = promote_dtype,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        kernel_size = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
        if in_features % feature_group_count:
            raise LayerInputError(
                f"feature_group_count={feature_group_count} does not divide in_features={in_features}.",
                place=type(self).__name__,
            )
        self.kernel_shape = (*kernel_size, in_features // feature_group_count, out_features)
        self.kernel = new_param(self, rngs, kernel_init, self.kernel_shape, param_dtype, kernel_metadata)
        self.bias = optional_param(use_bias, self, rngs, bias_init, (out_features,), param_dtype, bias_metadata)
        self.in_features = in_features
        self.out_features = out_features
        self.kernel_size = kernel_size
        self.strides = strides
        self.padding = padding
        self.input_dilation = input_dilation
        self.kernel_dilation = kernel_dilation
        self.feature_group_count = feature_group_count
        self.use_bias = use_bias
        self.mask = data(mask)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.conv_general_dilated = conv_general_dilated
        self.promote_dtype = promote_dtype
        self.preferred_element_type = preferred_element_type

    @names_its_place
    def __call__(self, inputs: jax.Array, out_sharding: OutSharding | None = None) -> jax.Array:
        """Convolves `(batch..., spatial..., in_features)` to `(batch..., spatial..., out_features)`.

        `out_sharding` is the sharding of the result, under explicit sharding.
        """
        return ops.conv(
            inputs,
            self.kernel[...],
            value_of(self.bias),
            preferred_element_type=self.preferred_element_type,
            out_sharding=out_sharding,
            **options_of(self, CONV),
        )


class ConvTranspose(Module):
    """A transposed convolution: enlarges its inputs by `strides`.

    Args:
        strides: By how much to enlarge, one number or one per spatial axis.
        padding: `'SAME'`, `'VALID'`, `'CIRCULAR'`, a number, or one number or (low, high) pair per spatial axis.
        precision: As in `jax.lax.conv_transpose`.
        transpose_kernel: Flip the kernel and swap its last axes.
        preferred_element_type: As in `jax.lax.conv_transpose`.
        The others are those of `nnx.Conv`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.ConvTranspose(3, 4, (3, 3), strides=(2, 2), rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 8, 8, 3))).shape
        (2, 16, 16, 4)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        *,
        padding: Padding = "SAME",
        kernel_dilation: int | Sequence[int] | None = None,
        use_bias: bool = True,
        mask: jax.Array | None = None,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Init = default_kernel_init,
        bias_init: Init = default_bias_init,
        transpose_kernel: bool = False,
        promote_dtype: PromoteDtype = promote_dtype,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        self.kernel_size = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
        self.in_features = in_features
        self.out_features = out_features
        self.strides = strides
        self.padding = padding
        self.kernel_dilation = kernel_dilation
        self.use_bias = use_bias
        self.mask = data(mask)
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.transpose_kernel = transpose_kernel
        self.promote_dtype = promote_dtype
        self.preferred_element_type = preferred_element_type
        features = (out_features, in_features) if transpose_kernel else (in_features, out_features)
        self.kernel_shape = (*self.kernel_size, *features)
        self.kernel = new_param(self, rngs, kernel_init, self.kernel_shape, param_dtype, kernel_metadata)
        self.bias = optional_param(use_bias, self, rngs, bias_init, (out_features,), param_dtype, bias_metadata)

    @names_its_place
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Convolves `(batch..., spatial..., in_features)` to `(batch..., spatial..., out_features)`."""
        options = options_of(self, CONV_TRANSPOSE)
        return ops.conv_transpose(inputs, self.kernel[...], value_of(self.bias), **options)
