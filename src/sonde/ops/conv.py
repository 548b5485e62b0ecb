"""Convolutions, features last: plain, transposed, and with a separate kernel at every position.

Inputs are `(batch..., spatial..., features)` with any number of batch axes, or none: they are folded
into one for the convolution and unfolded afterwards. Kernels are `(spatial..., in / groups, out)`.

A mask multiplies the kernel before anything else; masked entries get no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import PrecisionLike

from sonde.errors import LayerInputError
from sonde.ops.checks import expect_rank, expect_shape, expect_size
from sonde.ops.dense import given
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_all, promote_dtype
from sonde.ops.padding import Padding, apply_padding, canonicalize_padding, per_axis
from sonde.ops.sharding import OutSharding

ConvGeneralDilated = Callable[..., jax.Array]
"""A replacement for `jax.lax.conv_general_dilated`."""


def conv(
    inputs: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    *,
    strides: int | Sequence[int] | None = 1,
    padding: Padding = "SAME",
    input_dilation: int | Sequence[int] | None = 1,
    kernel_dilation: int | Sequence[int] | None = 1,
    feature_group_count: int = 1,
    mask: jax.Array | None = None,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    conv_general_dilated: ConvGeneralDilated = lax.conv_general_dilated,
    promote_dtype: PromoteDtype | None = promote_dtype,
    out_sharding: OutSharding | None = None,
) -> jax.Array:
    """Convolves inputs with a kernel.

    `inputs` are `(batch..., spatial..., in)`, `kernel` is `(spatial..., in / feature_group_count, out)`, `bias` is
    `(out,)` or None; the result is `(batch..., spatial..., out)`. The options are those of `nnx.Conv`. An
    `input_dilation` of more than 1 makes a transposed convolution and needs a numeric padding.

    Raises:
        LayerInputError: Rank, features, mask, padding or another option do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> conv(jnp.ones((2, 8, 3)), jnp.ones((3, 3, 4)), padding="CAUSAL", strides=2).shape
        (2, 4, 4)
    """
    rank = kernel.ndim - 2
    folded, unfold = _fold_batch(jnp.asarray(inputs), rank)
    _check_groups(folded, kernel, feature_group_count)
    kernel_dilation = per_axis(kernel_dilation, rank, option="kernel_dilation")
    input_dilation = per_axis(input_dilation, rank, option="input_dilation")
    # Padded before the cast, as in Flax: if padding repeats an element, its gradients are added in its own dtype.
    folded, padding = apply_padding(folded, padding, kernel_size=kernel.shape[:-2], kernel_dilation=kernel_dilation)
    folded, kernel, bias = promote_all(promote_dtype, (folded, _masked(kernel, mask), bias), dtype)
    if isinstance(padding, str) and padding != "VALID" and any(d > 1 for d in input_dilation):
        raise LayerInputError(
            f"padding {padding!r} is undefined for a dilated input (input_dilation={input_dilation}): give the "
            "padding in numbers, or use a transposed convolution."
        )
    y = conv_general_dilated(
        folded,
        kernel,
        per_axis(strides, rank, option="strides"),
        padding,
        lhs_dilation=input_dilation,
        rhs_dilation=kernel_dilation,
        dimension_numbers=features_last(folded.ndim),
        feature_group_count=feature_group_count,
        precision=precision,
        **given(preferred_element_type=preferred_element_type, out_sharding=out_sharding),
    )
    return unfold(_add_bias(y, bias))


def conv_transpose(
    inputs: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    *,
    strides: int | Sequence[int] | None = None,
    padding: Padding = "SAME",
    kernel_dilation: int | Sequence[int] | None = None,
    mask: jax.Array | None = None,
    transpose_kernel: bool = False,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: Dtype | None = None,
    promote_dtype: PromoteDtype | None = promote_dtype,
) -> jax.Array:
    """Spreads the inputs apart by `strides`, then convolve: enlarges the inputs.

    `inputs` are `(batch..., spatial..., in)`, `kernel` is `(spatial..., in, out)`, `bias` is `(out,)` or None; the
    result is `(batch..., spatial..., out)`. With `transpose_kernel` the kernel is `(spatial..., out, in)`, and this is
    the gradient of a convolution. The options are those of `nnx.ConvTranspose`.

    Raises:
        LayerInputError: Rank, features, mask or padding do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> conv_transpose(jnp.ones((2, 8, 3)), jnp.ones((3, 3, 4)), strides=2).shape
        (2, 16, 4)
    """
    rank = kernel.ndim - 2
    folded, unfold = _fold_batch(jnp.asarray(inputs), rank)
    expect_size(
        folded,
        axis=-1,
        size=kernel.shape[-1 if transpose_kernel else -2],
        argument="inputs",
        meaning="input features",
    )
    folded, kernel, bias = promote_all(promote_dtype, (folded, _masked(kernel, mask), bias), dtype)
    strides = per_axis(strides, rank, option="strides")
    padding = canonicalize_padding(padding, rank)
    if isinstance(padding, str) and padding not in ("SAME", "VALID", "CIRCULAR"):
        raise LayerInputError(
            f"unknown padding {padding!r} for a transposed convolution: expected 'SAME', 'VALID', 'CIRCULAR', a "
            "number, or pairs of numbers."
        )
    circular = padding == "CIRCULAR"
    y = lax.conv_transpose(
        folded,
        kernel,
        strides,
        "VALID" if circular else padding,
        rhs_dilation=per_axis(kernel_dilation, rank, option="kernel_dilation"),
        transpose_kernel=transpose_kernel,
        precision=precision,
        **given(preferred_element_type=preferred_element_type),
    )
    # Computed as if the inputs were not periodic; what hangs over is added at the other end.
    if circular:
        for axis, stride in enumerate(strides, start=1):
            y = _wrap(y, axis, period=folded.shape[axis] * stride, lean_right=not transpose_kernel)
    return unfold(_add_bias(y, bias))


def conv_local(
    inputs: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None = None,
    *,
    kernel_size: Sequence[int],
    strides: int | Sequence[int] | None = 1,
    padding: Padding = "SAME",
    input_dilation: int | Sequence[int] | None = 1,
    kernel_dilation: int | Sequence[int] | None = 1,
    mask: jax.Array | None = None,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    promote_dtype: PromoteDtype | None = promote_dtype,
) -> jax.Array:
    """Convolves with a separate kernel at every position: no weights are shared.

    `kernel` is `(output spatial..., window * in, out)`, see `conv_local_kernel_shape`; `bias` is `(output spatial...,
    out)` or None; the result is `(batch..., output spatial..., out)`. The options are those of `linen.ConvLocal`.

    Raises:
        LayerInputError: Rank, features, mask, padding or another option do not fit.
    """
    rank = len(kernel_size)
    folded, unfold = _fold_batch(jnp.asarray(inputs), rank)
    size = kernel.shape[-2] // math.prod(kernel_size)
    expect_size(folded, axis=-1, size=size, argument="inputs", meaning="input features")
    kernel_dilation = per_axis(kernel_dilation, rank, option="kernel_dilation")
    folded, padding = apply_padding(folded, padding, kernel_size=kernel_size, kernel_dilation=kernel_dilation)
    folded, kernel, bias = promote_all(promote_dtype, (folded, _masked(kernel, mask), bias), dtype)
    y = lax.conv_general_dilated_local(
        lhs=folded,
        rhs=kernel,
        window_strides=per_axis(strides, rank, option="strides"),
        padding=padding,
        filter_shape=tuple(kernel_size),
        lhs_dilation=per_axis(input_dilation, rank, option="input_dilation"),
        rhs_dilation=kernel_dilation,
        dimension_numbers=features_last(folded.ndim),
        precision=precision,
    )
    return unfold(y if bias is None else y + jnp.expand_dims(bias, 0))


def conv_local_kernel_shape(
    input_shape: Sequence[int],
    features: int,
    *,
    kernel_size: Sequence[int],
    strides: int | Sequence[int] | None = 1,
    padding: Padding = "SAME",
    input_dilation: int | Sequence[int] | None = 1,
    kernel_dilation: int | Sequence[int] | None = 1,
) -> tuple[int, ...]:
    """The shape of the kernel that `conv_local` needs for inputs of a given shape.

    Example:
        >>> conv_local_kernel_shape((2, 7, 3), 4, kernel_size=(3,), strides=2)
        (4, 9, 4)
    """
    n_in = input_shape[-1]
    # Asked of the convolution itself: it knows how paddings, strides and dilations combine.
    out = jax.eval_shape(
        lambda x, k: conv(
            x,
            k,
            strides=strides,
            padding=padding,
            input_dilation=input_dilation,
            kernel_dilation=kernel_dilation,
        ),
        jax.ShapeDtypeStruct(tuple(input_shape), jnp.float32),
        jax.ShapeDtypeStruct((*kernel_size, n_in, features), jnp.float32),
    )
    rank = len(kernel_size)
    return (*out.shape[-rank - 1 : -1], math.prod(kernel_size) * n_in, features)


def features_last(ndim: int) -> lax.ConvDimensionNumbers:
    """The dimension numbers of a convolution over `(batch, spatial..., features)`."""
    data = (0, ndim - 1, *range(1, ndim - 1))
    kernel = (ndim - 1, ndim - 2, *range(ndim - 2))
    return lax.ConvDimensionNumbers(data, kernel, data)


def _fold_batch(inputs: jax.Array, rank: int) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """The inputs with all batch axes merged into one, and a function that splits them again."""
    expect_rank(inputs, least=rank + 1, argument="inputs", meaning=f"{rank} spatial axes and the features")
    batch = inputs.shape[: inputs.ndim - rank - 1]
    if len(batch) == 1:
        return inputs, lambda y: y
    folded = jnp.reshape(inputs, (math.prod(batch), *inputs.shape[len(batch) :]))
    return folded, lambda y: jnp.reshape(y, (*batch, *y.shape[1:]))


def _check_groups(inputs: jax.Array, kernel: jax.Array, groups: int) -> None:
    expect_size(inputs, axis=-1, size=kernel.shape[-2] * groups, argument="inputs", meaning="input features")
    if kernel.shape[-1] % groups:
        raise LayerInputError(
            f"feature_group_count={groups} does not divide the {kernel.shape[-1]} output features of the kernel."
        )


def _masked(kernel: jax.Array, mask: jax.Array | None) -> jax.Array:
    if mask is None:
        return kernel
    expect_shape(mask, kernel.shape, argument="mask", meaning="that of the kernel")
    return kernel * jnp.asarray(mask, kernel.dtype)


def _add_bias(y: jax.Array, bias: jax.Array | None) -> jax.Array:
    return y if bias is None else y + jnp.reshape(bias, (1,) * (y.ndim - 1) + (-1,))


def _wrap(y: jax.Array, axis: int, *, period: int, lean_right: bool) -> jax.Array:
    """Wraps a longer array around a circle of length `period`, centered, and adds elements that coincide.

    Centered means that as much hangs over on the left as on the right; an odd element is on the side that keeps a
    transposed kernel aligned with the convolution that it is the gradient of.
    """
    size = y.shape[axis]
    start = (period - size + lean_right) // 2 % period
    end = -(start + size) % period
    y = jnp.pad(y, [(start, end) if i == axis else (0, 0) for i in range(y.ndim)])
    turns = jnp.reshape(y, (*y.shape[:axis], -1, period, *y.shape[axis + 1 :]))
    return jnp.sum(turns, axis=axis)
