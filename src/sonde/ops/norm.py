"""Normalization by mean and variance: batch, layer, RMS, group and instance norm are one computation.

They differ in the axes that are averaged over (`reduction_axes`) and the axes that `scale` and `bias` have
(`feature_axes`). `moments` averages, `normalize` applies, and one function per layer chooses the axes.

Statistics are taken in float32 at least, whatever the inputs are, unless `force_float32_reductions` is off.

Sharp edges:
- `use_fast_variance` computes E[x²] - E[x]², clipped at zero: one pass and, with an axis name, one
  collective. It loses digits when the mean is much larger than the spread; then switch it off.
- With a mask and an axis name, every device has the same weight, however many of its elements are masked.
- A mask changes the statistics only; masked elements are still normalized.
- `promote_dtype` casts all arrays first, as in `flax.nnx`; None casts nothing, as in `flax.linen`.

Sites: `factor`, one over the deviation, and `normalized`, the values before scale and bias. With the factor held
constant, a norm is linear: attribution graphs rely on it.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import jax
import jax.numpy as jnp
from jax import lax

from sonde._array_text import describe
from sonde.core import sow, sows_are_seen
from sonde.errors import LayerInputError
from sonde.ops.checks import expect_broadcastable, expect_size
from sonde.ops.dtypes import Dtype, PromoteDtype, canonicalize_dtype, promote_all, promote_dtype, widest

Axes = int | Sequence[int]


class Averaging(TypedDict, total=False):
    """How all norms take averages; see `moments`."""

    axis_name: str | None
    axis_index_groups: Sequence[Sequence[int]] | None
    use_fast_variance: bool
    force_float32_reductions: bool


def canonicalize_axes(axes: Axes, ndim: int) -> tuple[int, ...]:
    """Axes as an increasing tuple of non-negative numbers: parameters have the order of the input's axes."""
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    for axis in axes:
        if not -ndim <= axis < ndim:
            raise LayerInputError(f"axis {axis} is out of range for an input with {ndim} axes.")
    return tuple(sorted({axis % ndim for axis in axes}))


def moments(
    x: jax.Array,
    axes: Axes,
    *,
    dtype: Dtype | None = None,
    axis_name: str | None = None,
    axis_index_groups: Sequence[Sequence[int]] | None = None,
    use_mean: bool = True,
    use_fast_variance: bool = True,
    mask: jax.Array | None = None,
    force_float32_reductions: bool = True,
) -> tuple[jax.Array | None, jax.Array]:
    """Mean and variance over some axes.

    Args:
        x: The inputs.
        axes: The axes to average over.
        dtype: The dtype to compute in; None takes that of the inputs.
        axis_name: A mapped axis (of `vmap`, `shard_map`, `pmap`) to average over as well.
        axis_index_groups: Groups of the mapped axis that are averaged separately.
        use_mean: False skips the mean: returns None for it, and the mean square as the variance.
        use_fast_variance: E[x²] - E[x]² instead of E[(x - E[x])²].
        mask: Which elements count; broadcast to the inputs.
        force_float32_reductions: Compute in float32 at least.

    Returns:
        Mean (or None) and variance, without the axes averaged over.

    Example:
        >>> import jax.numpy as jnp
        >>> moments(jnp.array([[1.0, 3.0], [2.0, 2.0]]), -1)
        (Array([2., 2.], dtype=float32), Array([1., 0.], dtype=float32))
    """
    if mask is not None:
        expect_broadcastable(mask, x.shape, argument="mask", meaning="the shape of the inputs")
    # Half precision has too few digits for a sum over many elements.
    least = jnp.result_type(x) if dtype is None else dtype
    x = jnp.asarray(x, widest(least, jnp.float32) if force_float32_reductions else least)
    axes = canonicalize_axes(axes, x.ndim)

    def mean(*values: jax.Array) -> list[jax.Array]:
        local = [jnp.mean(v, axes, where=mask) for v in values]
        if axis_name is None:
            return local
        if len(local) == 1:
            return [lax.pmean(local[0], axis_name, axis_index_groups=axis_index_groups)]
        # Stacked: one collective instead of two.
        return list(lax.pmean(jnp.stack(local), axis_name, axis_index_groups=axis_index_groups))

    if not use_mean:
        return None, mean(_abs_squared(x))[0]
    if use_fast_variance:
        mu, mean_square = mean(x, _abs_squared(x))
        # Rounding can make the difference negative.
        return mu, jnp.maximum(jnp.zeros((), mean_square.dtype), mean_square - _abs_squared(mu))
    (mu,) = mean(x)
    return mu, mean(_abs_squared(x - jnp.expand_dims(mu, axes)))[0]


def normalize(
    x: jax.Array,
    mean: jax.Array | None,
    var: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    reduction_axes: Axes,
    feature_axes: Axes,
    epsilon: float,
    dtype: Dtype | None = None,
) -> jax.Array:
    """Subtracts a mean, divides by a deviation, scales and shifts.

    Args:
        x: The inputs.
        mean: The mean, with or without the reduction axes; None subtracts nothing.
        var: Shaped like `mean`.
        scale: An array with the feature axes of `x`, or None.
        bias: An array with the feature axes of `x`, or None.
        reduction_axes: The axes that `mean` and `var` lack.
        feature_axes: The axes that `scale` and `bias` have.
        epsilon: Added to the variance.
        dtype: The dtype of the result; None derives it from the inputs, scale and bias.

    Returns:
        An array shaped like `x`.

    Raises:
        LayerInputError: Scale, bias, mean or variance do not fit the inputs.
    """
    out_dtype = canonicalize_dtype(x, scale, bias, dtype=dtype)
    arrays = [a for a in (x, mean, var, scale, bias) if a is not None]
    compute = widest(*arrays)
    reduction_axes = canonicalize_axes(reduction_axes, x.ndim)
    feature_axes = canonicalize_axes(feature_axes, x.ndim)

    def per_feature(a: jax.Array, name: str) -> jax.Array:
        sizes = tuple(x.shape[axis] for axis in feature_axes)
        if a.size != math.prod(sizes):
            raise LayerInputError(
                f"the inputs have the wrong number of features: expected {a.size} (the size of `{name}`) along axes "
                f"{feature_axes}, got {describe(x)}."
            )
        shape = tuple(n if axis in feature_axes else 1 for axis, n in enumerate(x.shape))
        return jnp.asarray(jnp.reshape(a, shape), compute)

    def per_group(a: jax.Array) -> jax.Array:
        return a if a.ndim == x.ndim else jnp.expand_dims(a, reduction_axes)

    y = jnp.asarray(x, compute)
    if mean is not None:
        y = y - jnp.asarray(per_group(mean), compute)
    # epsilon is added in the variance's own dtype, before anything is widened.
    inverse = lax.rsqrt(per_group(var) + jnp.asarray(epsilon, var.dtype))
    factor = sow(jnp.asarray(inverse, compute), "factor")
    if scale is not None:
        scale = per_feature(scale, "scale")
    if bias is not None:
        bias = per_feature(bias, "bias")
    return jnp.asarray(_scaled(y, factor, scale, bias), out_dtype)


def _scaled(centered: jax.Array, factor: jax.Array, scale: jax.Array | None, bias: jax.Array | None) -> jax.Array:
    """`centered * factor * scale + bias`, with a site before the scale."""

    def shifted(y: jax.Array) -> jax.Array:
        return y if bias is None else y + bias

    if scale is None:
        return shifted(sow(centered * factor, "normalized"))
    # The factor is scaled first, as in Flax: another order differs in the last digit. So the values before the scale do
    # not occur.
    y = shifted(centered * (factor * scale))
    if not sows_are_seen():
        return y
    # A capture must not change the result, not even in its last digit: the sum above stays, and an edit is added as a
    # difference. Where a difference has no meaning, the site's value is scaled and shifted.
    normalized = centered * factor
    sown = sow(normalized, "normalized")
    return jnp.where(jnp.isfinite(normalized), y + (sown - normalized) * scale, shifted(sown * scale))


def batch_norm(
    x: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    running_mean: jax.Array,
    running_var: jax.Array,
    *,
    use_running_average: bool,
    axis: Axes = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-5,
    mask: jax.Array | None = None,
    dtype: Dtype | None = None,
    promote_dtype: PromoteDtype | None = promote_dtype,
    **averaging: Unpack[Averaging],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Normalizes every feature over the batch, or by running averages.

    `scale`, `bias` and the running averages have one number per feature. `axis` are the feature axes; all others are
    averaged over. `momentum` is the weight of the old running averages; with `use_running_average` they normalize, and
    stay as they are. The other options are those of `nnx.BatchNorm`.

    Returns:
        The normalized inputs, and the new running mean and variance. No gradient flows into those two.

    Raises:
        LayerInputError: The inputs have another number of features, or the mask does not fit.
    """
    feature_axes = canonicalize_axes(axis, x.ndim)
    if len(feature_axes) == 1:
        expect_size(x, axis=feature_axes[0], size=running_mean.size, argument="inputs", meaning="features")
    reduction_axes = tuple(i for i in range(x.ndim) if i not in feature_axes)
    x, mean, var, scale, bias = promote_all(promote_dtype, (x, running_mean, running_var, scale, bias), dtype)
    if not use_running_average:
        mean, var = moments(x, reduction_axes, dtype=dtype, mask=mask, **averaging)
        running_mean = _running(running_mean, mean, momentum)
        running_var = _running(running_var, var, momentum)
    y = normalize(
        x,
        mean,
        var,
        scale,
        bias,
        reduction_axes=reduction_axes,
        feature_axes=feature_axes,
        epsilon=epsilon,
        dtype=dtype,
    )
    return y, running_mean, running_var


def layer_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    reduction_axes: Axes = -1,
    feature_axes: Axes = -1,
    epsilon: float = 1e-6,
    use_mean: bool = True,
    mask: jax.Array | None = None,
    dtype: Dtype | None = None,
    promote_dtype: PromoteDtype | None = promote_dtype,
    **averaging: Unpack[Averaging],
) -> jax.Array:
    """Normalizes every position over its features. With `use_mean=False` this is RMS norm.

    `scale` and `bias` have the feature axes. The other options are those of `nnx.BatchNorm`.

    Raises:
        LayerInputError: The inputs have another number of features, or the mask does not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> layer_norm(jnp.array([1.0, 3.0])).round(3)
        Array([-1.,  1.], dtype=float32)
    """
    x, scale, bias = promote_all(promote_dtype, (x, scale, bias), dtype)
    mean, var = moments(x, reduction_axes, dtype=dtype, use_mean=use_mean, mask=mask, **averaging)
    return normalize(
        x,
        mean,
        var,
        scale,
        bias,
        reduction_axes=reduction_axes,
        feature_axes=feature_axes,
        epsilon=epsilon,
        dtype=dtype,
    )


def rms_norm(x: jax.Array, scale: jax.Array | None = None, **options: Any) -> jax.Array:
    """Divides every position by the root of its mean square; options as in `layer_norm`.

    Example:
        >>> import jax.numpy as jnp
        >>> rms_norm(jnp.array([3.0, 3.0])).round(3)
        Array([1., 1.], dtype=float32)
    """
    return layer_norm(x, scale, None, use_mean=False, **options)


def instance_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    feature_axes: Axes = -1,
    **options: Any,
) -> jax.Array:
    """Normalizes every feature of every example over the axes between batch and features; options as in `layer_norm`.

    `x` is `(batch, ..., features)`; `scale` and `bias` have the feature axes, any but the first.

    Raises:
        LayerInputError: The first axis, which is the batch, is among the feature axes.
    """
    features = canonicalize_axes(feature_axes, x.ndim)
    if 0 in features:
        raise LayerInputError(
            f"feature_axes={feature_axes} contain axis 0 of {describe(x)}, which is the batch: choose other axes."
        )
    reduction_axes = tuple(i for i in range(1, x.ndim) if i not in features)
    return layer_norm(x, scale, bias, reduction_axes=reduction_axes, feature_axes=features, **options)


def group_norm(
    x: jax.Array,
    scale: jax.Array | None = None,
    bias: jax.Array | None = None,
    *,
    num_groups: int,
    reduction_axes: Axes | None = None,
    epsilon: float = 1e-6,
    mask: jax.Array | None = None,
    dtype: Dtype | None = None,
    promote_dtype: PromoteDtype | None = promote_dtype,
    **averaging: Unpack[Averaging],
) -> jax.Array:
    """Normalizes groups of features of every example.

    `x` is `(batch, ..., features)`; `scale` and `bias` have one number per feature. `reduction_axes` include the last;
    None means all but the first. The other options are those of `nnx.BatchNorm`.

    Raises:
        LayerInputError: The features cannot be split into these groups, or the mask does not fit.
    """
    features = x.shape[-1]
    if num_groups <= 0 or features % num_groups:
        raise LayerInputError(
            f"{features} features of {describe(x)} cannot be split into num_groups={num_groups} groups of equal size."
        )
    axes = range(1, x.ndim) if reduction_axes is None else canonicalize_axes(reduction_axes, x.ndim)
    if x.ndim - 1 not in axes:
        raise LayerInputError(
            f"reduction_axes={reduction_axes} must include the last axis of {describe(x)}, which holds the features."
        )
    axes = tuple(i for i in axes if i != x.ndim - 1)
    x, scale, bias = promote_all(promote_dtype, (x, scale, bias), dtype)
    if mask is not None:
        expect_broadcastable(mask, x.shape, argument="mask", meaning="the shape of the inputs")
        # Broadcast first: a mask of one feature cannot be split into groups.
        mask = jnp.reshape(jnp.broadcast_to(mask, x.shape), (*x.shape[:-1], num_groups, features // num_groups))
    mean, var = moments(
        jnp.reshape(x, (*x.shape[:-1], num_groups, features // num_groups)),
        (*axes, x.ndim),
        dtype=dtype,
        mask=mask,
        **averaging,
    )
    # A mean for each group becomes one for each feature, so `normalize` need not know groups.
    return normalize(
        x,
        jnp.repeat(mean, features // num_groups, axis=-1),  # type: ignore[arg-type]
        jnp.repeat(var, features // num_groups, axis=-1),
        scale,
        bias,
        reduction_axes=axes,
        feature_axes=-1,
        epsilon=epsilon,
        dtype=dtype,
    )


def group_count(features: int, *, num_groups: int | None, group_size: int | None) -> int:
    """The number of groups of a group norm, from exactly one of the two options.

    Raises:
        LayerInputError: Both or neither are given, or the number of features is not a multiple of the size.

    Example:
        >>> group_count(6, num_groups=None, group_size=2)
        3
    """
    if (num_groups is None) == (group_size is None):
        raise LayerInputError(
            f"give exactly one of `num_groups` and `group_size`, got {num_groups} and {group_size}. "
            "`num_groups` is 32 by default: with `group_size`, pass num_groups=None."
        )
    if num_groups is None:
        assert group_size is not None
        if features % group_size:
            raise LayerInputError(f"{features} features cannot be split into groups of group_size={group_size}.")
        num_groups = features // group_size
    if num_groups <= 0 or features % num_groups:
        raise LayerInputError(f"{features} features cannot be split into num_groups={num_groups} groups of equal size.")
    return num_groups


def _abs_squared(x: jax.Array) -> jax.Array:
    parts = (lax.real(x), lax.imag(x)) if jnp.iscomplexobj(x) else (x,)
    return functools.reduce(operator.add, map(lax.square, parts))


def _running(old: jax.Array, new: Any, momentum: float) -> jax.Array:
    # Each is weighted in its own precision, as in Flax; gradients flow through both.
    old_part, new_part = old * jnp.asarray(momentum, old.dtype), new * jnp.asarray(1 - momentum, new.dtype)
    dtype = widest(old, new)
    return old_part.astype(dtype) + new_part.astype(dtype)
