"""Normalization of activations: `BatchNorm`, `LayerNorm`, `RMSNorm`, `GroupNorm`, `InstanceNorm`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.linen.layers.parameters import scale_and_bias
from sonde.linen.modules.methods import compact
from sonde.linen.modules.module import Module, merge_param
from sonde.ops import layer_options
from sonde.ops.default_initializers import ones, zeros
from sonde.ops.layer_options import options_of
from sonde.ops.norm import canonicalize_axes

Axes = int | Sequence[int]


def _options(norm: Module, names: tuple[str, ...]) -> dict[str, Any]:
    return {**options_of(norm, (*names, "force_float32_reductions")), "promote_dtype": None}


def _sizes(x: jax.Array, axes: Axes) -> tuple[int, ...]:
    return tuple(x.shape[axis] for axis in canonicalize_axes(axes, x.ndim))


class BatchNorm(Module):
    """Normalizes every feature over the batch, or by running averages, which are in the collection `batch_stats`.

    Attributes:
        use_running_average: Whether to use the running averages; may be given to the call instead.
        axis: The feature axes; all others are averaged over.
        momentum: The weight of the old running averages in each call.
        epsilon: Added to the variance.
        dtype: The dtype of the result; None derives it from inputs and parameters.
        param_dtype: The dtype of the parameters.
        use_bias: Whether to add a bias.
        use_scale: Whether to multiply by a scale.
        bias_init: Initializer of the bias.
        scale_init: Initializer of the scale.
        axis_name: A mapped axis that is averaged over too, except during `init`.
        axis_index_groups: Groups of that axis that are averaged separately.
        use_fast_variance: Whether to compute the variance in one pass, which is less accurate.
        force_float32_reductions: Whether to average in float32 at least.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> norm = nn.BatchNorm(use_running_average=False, momentum=0.0)
        >>> x = jnp.array([[1.0], [3.0]])
        >>> variables = norm.init(jax.random.key(0), x)
        >>> y, changed = norm.apply(variables, x, mutable=["batch_stats"])
        >>> float(changed["batch_stats"]["mean"][0])
        2.0
    """

    use_running_average: bool | None = None
    axis: int = -1
    momentum: float = 0.99
    epsilon: float = 1e-5
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Callable[..., Any] = zeros
    scale_init: Callable[..., Any] = ones
    axis_name: str | None = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

    @compact
    def __call__(
        self, x: jax.Array, use_running_average: bool | None = None, *, mask: jax.Array | None = None
    ) -> jax.Array:
        """Normalizes the inputs.

        Args:
            x: The inputs.
            use_running_average: As the field of that name.
            mask: Which elements count for the statistics, broadcast to the inputs.
        """
        use_running_average = merge_param("use_running_average", self.use_running_average, use_running_average)
        x = jnp.asarray(x)
        shape = _sizes(x, self.axis)
        mean = self.variable("batch_stats", "mean", lambda: jnp.zeros(shape, jnp.float32))
        var = self.variable("batch_stats", "var", lambda: jnp.ones(shape, jnp.float32))
        scale, bias = scale_and_bias(self, shape, use_bias=self.use_bias)
        options = _options(self, layer_options.BATCH_NORM)
        if self.is_initializing():
            options["axis_name"] = None
        y, new_mean, new_var = ops.batch_norm(
            x,
            scale,
            bias,
            mean.value,
            var.value,
            use_running_average=use_running_average,
            mask=mask,
            **options,
        )
        if not use_running_average and not self.is_initializing():
            mean.value, var.value = new_mean, new_var
        return y


class LayerNorm(Module):
    """Normalizes every position over its features.

    Attributes:
        reduction_axes: The axes that are averaged over.
        feature_axes: The axes that scale and bias have.
        axis_name: A mapped axis that is averaged over too.
        The others are those of `nn.BatchNorm`.
    """

    epsilon: float = 1e-6
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Callable[..., Any] = zeros
    scale_init: Callable[..., Any] = ones
    reduction_axes: Axes = -1
    feature_axes: Axes = -1
    axis_name: str | None = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

    @compact
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes the inputs; `mask` says which elements count for the statistics."""
        x = jnp.asarray(x)
        scale, bias = scale_and_bias(self, _sizes(x, self.feature_axes), use_bias=self.use_bias)
        return ops.layer_norm(x, scale, bias, mask=mask, **_options(self, layer_options.LAYER_NORM))


class RMSNorm(Module):
    """Divides every position by the root of the mean square of its features; fields as in `LayerNorm`."""

    epsilon: float = 1e-6
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_scale: bool = True
    scale_init: Callable[..., Any] = ones
    reduction_axes: Axes = -1
    feature_axes: Axes = -1
    axis_name: str | None = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

    @compact
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes the inputs; `mask` says which elements count for the statistics."""
        x = jnp.asarray(x)
        scale, _ = scale_and_bias(self, _sizes(x, self.feature_axes), use_bias=False)
        return ops.rms_norm(x, scale, mask=mask, **_options(self, layer_options.LAYER_NORM))


class GroupNorm(Module):
    """Normalizes groups of features of every example; the groups are given by their number or by their size.

    Attributes:
        num_groups: The number of groups; None if `group_size` is given.
        group_size: The size of a group.
        reduction_axes: The axes that are averaged over, including the last; all but the first if None.
        epsilon, dtype, param_dtype, use_bias, use_scale, bias_init, scale_init, axis_name, axis_index_groups,
        use_fast_variance, force_float32_reductions: As in `LayerNorm`.
    """

    num_groups: int | None = 32
    group_size: int | None = None
    epsilon: float = 1e-6
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Callable[..., Any] = zeros
    scale_init: Callable[..., Any] = ones
    reduction_axes: Axes | None = None
    axis_name: str | None = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

    @compact
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes the inputs; `mask` says which elements count for the statistics."""
        x = jnp.asarray(x)
        features = x.shape[-1]
        groups = ops.group_count(features, num_groups=self.num_groups, group_size=self.group_size)
        scale, bias = scale_and_bias(self, (features,), use_bias=self.use_bias)
        options = _options(self, layer_options.GROUP_NORM)
        return ops.group_norm(x, scale, bias, num_groups=groups, mask=mask, **options)


class InstanceNorm(Module):
    """Normalizes every feature of every example over the axes between batch and features; fields as in `LayerNorm`."""

    epsilon: float = 1e-6
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Callable[..., Any] = zeros
    scale_init: Callable[..., Any] = ones
    feature_axes: Axes = -1
    axis_name: str | None = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True

    @compact
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes the inputs; `mask` says which elements count for the statistics."""
        x = jnp.asarray(x)
        scale, bias = scale_and_bias(self, _sizes(x, self.feature_axes), use_bias=self.use_bias)
        return ops.instance_norm(x, scale, bias, mask=mask, **_options(self, layer_options.INSTANCE_NORM))
