"""Normalization layers by mean and variance: batch, layer, RMS, group and instance norm.

The arithmetic is in `sonde.ops.norm`, with the site `normalized` before scale and bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.nnx.layers.parameters import NO_METADATA, Init, Metadata, chosen, keep_options, optional_param, value_of
from sonde.nnx.layers.place import names_its_place
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.rngs import Rngs
from sonde.nnx.variable.kinds import BatchStat
from sonde.ops import layer_options
from sonde.ops.default_initializers import ones, zeros
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_dtype
from sonde.ops.layer_options import options_of
from sonde.ops.norm import Axes


class _Norm(Module):
    """The options of all norms, and the parameters, which have one number per feature."""

    _parameters: ClassVar[tuple[str, ...]] = ("scale", "bias")  # drawn in this order, as in Flax
    num_features: int
    scale: Any  # a Param, or None without one; so for `bias`
    bias: Any
    epsilon: float
    dtype: Dtype | None
    param_dtype: Dtype
    use_bias: bool
    use_scale: bool
    axis_name: str | None
    axis_index_groups: Sequence[Sequence[int]] | None
    use_fast_variance: bool
    promote_dtype: PromoteDtype

    def _make(self, num_features: int, arguments: dict[str, Any]) -> None:
        """Draws the parameters and stores the options, from the `locals()` of a constructor."""
        for name in self._parameters:
            init, metadata = arguments[f"{name}_init"], arguments[f"{name}_metadata"]
            draw = init, (num_features,), arguments["param_dtype"], metadata
            setattr(self, name, optional_param(arguments[f"use_{name}"], self, arguments["rngs"], *draw))
        keep_options(self, arguments)

    def _normalized(
        self,
        op: Callable[..., jax.Array],
        names: tuple[str, ...],
        x: jax.Array,
        mask: jax.Array | None,
        **options: Any,
    ) -> jax.Array:
        """Calls an operation with the parameters, and the options that a table names."""
        parameters = [value_of(getattr(self, name)) for name in self._parameters]
        options |= options_of(self, names)
        return op(x, *parameters, mask=mask, promote_dtype=self.promote_dtype, **options)


class BatchNorm(_Norm):
    """Normalizes every feature over the batch while training, and by running averages afterwards.

    Args:
        num_features: Number of features.
        use_running_average: Normalize by the running averages; `train()`, `eval()` and the call can override it.
        axis: The feature axis or axes; all others are averaged over.
        momentum: The weight of the old running averages in a step.
        epsilon: Added to the variance.
        dtype: The dtype of the result; None derives it from inputs and parameters.
        param_dtype: The dtype that scale and bias are stored in.
        use_bias: Whether to add a bias.
        use_scale: Whether to multiply by a scale.
        bias_init: Initializer of the bias.
        scale_init: Initializer of the scale.
        axis_name: A mapped axis to average over as well.
        axis_index_groups: Groups of the mapped axis that are averaged separately.
        use_fast_variance: Compute the variance in one pass; less exact when the mean is large.
        promote_dtype: How inputs and parameters are cast to `dtype`.
        rngs: Random streams for the initial parameters.
        bias_metadata: Metadata of the bias's Variable.
        scale_metadata: Metadata of the scale's Variable.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.BatchNorm(2, momentum=0.9, rngs=nnx.Rngs(0))
        >>> y = layer(jnp.array([[1.0, 2.0], [3.0, 2.0]]))
        >>> layer.mean[...]
        Array([0.2, 0.2], dtype=float32)
    """

    use_running_average: bool
    axis: int
    momentum: float

    def __init__(
        self,
        num_features: int,
        *,
        use_running_average: bool = False,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Init = zeros,
        scale_init: Init = ones,
        axis_name: str | None = None,
        axis_index_groups: Sequence[Sequence[int]] | None = None,
        use_fast_variance: bool = True,
        promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
        bias_metadata: Metadata = NO_METADATA,
        scale_metadata: Metadata = NO_METADATA,
    ):
        self.mean = BatchStat(jnp.zeros((num_features,), jnp.float32))
        self.var = BatchStat(jnp.ones((num_features,), jnp.float32))
        self._make(num_features, locals())

    @names_its_place
    def __call__(
        self, x: jax.Array, use_running_average: bool | None = None, *, mask: jax.Array | None = None
    ) -> jax.Array:
        """Normalizes, and updates the running averages unless they are used.

        Args:
            x: The inputs.
            use_running_average: Overrides the layer's own setting.
            mask: Which elements count for the statistics; broadcast to the inputs.
        """
        by_running_average = chosen(self, "use_running_average", use_running_average, self.use_running_average)
        y, mean, var = ops.batch_norm(
            x,
            value_of(self.scale),
            value_of(self.bias),
            self.mean[...],
            self.var[...],
            use_running_average=by_running_average,
            mask=mask,
            promote_dtype=self.promote_dtype,
            **options_of(self, layer_options.BATCH_NORM),
        )
        if not by_running_average:
            for variable, average in ((self.mean, mean), (self.var, var)):
                if variable.ref or variable.hijax:  # array references hold no tangents
                    average = jax.lax.stop_gradient(average)
                variable.set_value(jnp.asarray(average, variable.dtype))
        return y

    # `nnx.view_info` prints what the docstring says of the arguments, and its output is that of Flax.
    def set_view(self, use_running_average: bool | None = None) -> None:
        """Sets what `nnx.view` may set.

        Args:
            use_running_average: if True, the stored batch statistics will be
                used instead of computing the batch statistics on the input.
        """
        if use_running_average is not None:
            self.use_running_average = use_running_average


class LayerNorm(_Norm):
    """Normalizes every position over its features.

    Args:
        reduction_axes: The axes to average over.
        feature_axes: The axes that scale and bias have.
        The others are those of `nnx.BatchNorm`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> nnx.LayerNorm(2, rngs=nnx.Rngs(0))(jnp.array([1.0, 3.0])).round(3)
        Array([-1.,  1.], dtype=float32)
    """

    reduction_axes: Axes
    feature_axes: Axes

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Init = zeros,
        scale_init: Init = ones,
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: str | None = None,
        axis_index_groups: Sequence[Sequence[int]] | None = None,
        use_fast_variance: bool = True,
        promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
        bias_metadata: Metadata = NO_METADATA,
        scale_metadata: Metadata = NO_METADATA,
    ):
        self._make(num_features, locals())

    @names_its_place
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes `x`; `mask`, broadcast to it, says which elements count."""
        return self._normalized(ops.layer_norm, layer_options.LAYER_NORM, x, mask)


class RMSNorm(_Norm):
    """Divides every position by the root of its mean square.

    Args:
        epsilon: Added to the mean square.
        param_dtype: The dtype that the scale is stored in.
        reduction_axes: The axes to average over.
        feature_axes: The axes that the scale has.
        use_fast_variance: Accepted, without effect: there is no mean to subtract.
        The others are those of `nnx.BatchNorm`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> nnx.RMSNorm(2, rngs=nnx.Rngs(0))(jnp.array([3.0, -3.0])).round(3)
        Array([ 1., -1.], dtype=float32)
    """

    _parameters = ("scale",)
    reduction_axes: Axes
    feature_axes: Axes

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        use_scale: bool = True,
        scale_init: Init = ones,
        reduction_axes: Axes = -1,
        feature_axes: Axes = -1,
        axis_name: str | None = None,
        axis_index_groups: Sequence[Sequence[int]] | None = None,
        use_fast_variance: bool = True,
        promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
        scale_metadata: Metadata = NO_METADATA,
    ):
        self._make(num_features, locals())

    @names_its_place
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes `x`; `mask`, broadcast to it, says which elements count."""
        return self._normalized(ops.rms_norm, layer_options.LAYER_NORM, x, mask)


class GroupNorm(_Norm):
    """Normalizes groups of features of every example.

    Args:
        num_groups: How many groups; None if `group_size` is given.
        group_size: How many features a group has.
        reduction_axes: The axes to average over, including the last; None means all but the first.
        The others are those of `nnx.BatchNorm`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.GroupNorm(6, num_groups=3, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 5, 6))).shape
        (2, 5, 6)
    """

    num_groups: int
    group_size: int
    reduction_axes: Axes | None

    def __init__(
        self,
        num_features: int,
        num_groups: int | None = 32,
        group_size: int | None = None,
        *,
        epsilon: float = 1e-6,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Init = zeros,
        scale_init: Init = ones,
        reduction_axes: Axes | None = None,
        axis_name: str | None = None,
        axis_index_groups: Sequence[Sequence[int]] | None = None,
        use_fast_variance: bool = True,
        promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
        bias_metadata: Metadata = NO_METADATA,
        scale_metadata: Metadata = NO_METADATA,
    ):
        self.feature_axis = -1
        self.num_groups = num_groups = _group_count(self, num_features, num_groups, group_size)
        self.group_size = group_size = num_features // num_groups
        arguments = locals()
        self._make(arguments.pop("num_features"), arguments)  # Flax keeps the groups, and not the features

    @names_its_place
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes `(batch, ..., num_features)`; `mask`, broadcast to it, says which elements count."""
        return self._normalized(ops.group_norm, layer_options.GROUP_NORM, x, mask, num_groups=self.num_groups)


class InstanceNorm(_Norm):
    """Normalizes every feature of every example over the axes between batch and features.

    Args:
        feature_axes: The feature axes, any but the first.
        The others are those of `nnx.BatchNorm`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> nnx.InstanceNorm(6, rngs=nnx.Rngs(0))(jnp.ones((2, 5, 6))).shape
        (2, 5, 6)
    """

    feature_axes: Axes

    def __init__(
        self,
        num_features: int,
        *,
        epsilon: float = 1e-6,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Init = zeros,
        scale_init: Init = ones,
        feature_axes: Axes = -1,
        axis_name: str | None = None,
        axis_index_groups: Sequence[Sequence[int]] | None = None,
        use_fast_variance: bool = True,
        promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
        bias_metadata: Metadata = NO_METADATA,
        scale_metadata: Metadata = NO_METADATA,
    ):
        self._make(num_features, locals())

    @names_its_place
    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes `(batch, ..., features)`; `mask`, broadcast to it, says which elements count."""
        return self._normalized(ops.instance_norm, layer_options.INSTANCE_NORM, x, mask)


@names_its_place
def _group_count(layer: GroupNorm, num_features: int, num_groups: int | None, group_size: int | None) -> int:
    return ops.group_count(num_features, num_groups=num_groups, group_size=group_size)
