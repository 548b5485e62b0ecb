"""Wrappers that normalize the weights of a layer before every call.

Sharp edge, as in Flax: the normalized weights are written into the wrapped layer. After a call the layer holds the
normalized weights, not those it held before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sonde import ops
from sonde._array_text import describe
from sonde.errors import LayerInputError
from sonde.nnx.layers.parameters import Init, chosen
from sonde.nnx.layers.place import names_its_place
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.rngs import Rngs
from sonde.nnx.states.filters import Filter, PathContains, to_predicate
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure.iteration import iter_graph
from sonde.nnx.variable.kinds import BatchStat, Param
from sonde.nnx.variable.variable import Variable
from sonde.ops.default_initializers import ones, zeros
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_dtype
from sonde.ops.norm import Axes

_KERNELS = PathContains("kernel")


class SpectralNorm(Module):
    """Divides the kernels of a layer by their largest singular value, found by power iteration.

    Args:
        layer_instance: The layer to wrap.
        n_steps: How many iterations per call.
        epsilon: Added to squared lengths.
        dtype: The dtype of the divided kernels; None keeps theirs.
        param_dtype: The dtype that the iteration's state is stored in.
        error_on_non_matrix: Refuse kernels with more than two axes instead of flattening them.
        update_stats: Whether calls update the iteration's state; the call can override it.
        rngs: Random streams for the start of the iteration.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> rngs = nnx.Rngs(0)
        >>> layer = nnx.SpectralNorm(nnx.Linear(3, 4, rngs=rngs), n_steps=50, rngs=rngs)
        >>> y = layer(jnp.ones((2, 3)), update_stats=True)
        >>> float(jnp.linalg.norm(layer.layer_instance.kernel[...], 2).round(3))
        1.0
    """

    def __init__(
        self,
        layer_instance: Callable[..., Any],
        *,
        n_steps: int = 1,
        epsilon: float = 1e-12,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        error_on_non_matrix: bool = False,
        update_stats: bool = True,
        rngs: Rngs,
    ):
        self.layer_instance = layer_instance
        self.n_steps = n_steps
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.error_on_non_matrix = error_on_non_matrix
        self.use_running_average = not update_stats
        stats: dict[tuple[Any, ...], Variable[Any]] = {}
        for path, kernel in _params(layer_instance, _KERNELS):
            if kernel.ndim > 1 and n_steps >= 1:
                stats[*path, "u"] = BatchStat(ops.initial_u(rngs.params(), kernel.shape[-1], param_dtype))
                stats[*path, "sigma"] = BatchStat(jnp.ones((), param_dtype))
        self.batch_stats = data(stats)

    @names_its_place
    def __call__(self, x: jax.Array, update_stats: bool | None = None) -> Any:
        """Normalizes the kernels, writes them into the layer and calls it on `x`.

        `update_stats` says whether to update the iteration's state, and overrides the layer's own setting.
        """
        own = None if self.use_running_average is None else not self.use_running_average
        update_stats = chosen(self, "update_stats", update_stats, own)
        for path, kernel in _params(self.layer_instance, _KERNELS):
            # A kernel with one axis is no matrix and has no singular value.
            if (*path, "u") not in self.batch_stats:
                continue
            if kernel.ndim > 2 and self.error_on_non_matrix:
                raise LayerInputError(
                    f"with error_on_non_matrix=True every kernel must have two axes, but {show_path(path)} of "
                    f"the wrapped {type(self.layer_instance).__name__} is {describe(kernel[...])}."
                )
            u, sigma = self.batch_stats[*path, "u"], self.batch_stats[*path, "sigma"]
            value, new_u, new_sigma = ops.spectral_norm(
                kernel[...], u[...], n_steps=self.n_steps, epsilon=self.epsilon, dtype=self.dtype
            )
            if update_stats:
                u.set_value(jnp.asarray(new_u, u.dtype))
                sigma.set_value(jnp.asarray(new_sigma, sigma.dtype))
            kernel.set_value(jnp.asarray(value, kernel.dtype))
        return self.layer_instance(x)


class WeightNorm(Module):
    """Makes the length of every feature of a layer's kernels a parameter: the scale.

    Args:
        layer_instance: The layer to wrap.
        feature_axes: The axes with one length per index; None means one length for the whole kernel.
        use_scale: Whether there is a scale; otherwise every length is 1.
        scale_init: Initializer of the scales.
        epsilon: Added to squared lengths.
        dtype: The dtype of the normalized kernels; None derives it from kernel and scale.
        param_dtype: The dtype that scales are stored in.
        variable_filter: Which parameters to normalize.
        promote_dtype: Accepted, but without effect, as in Flax.
        rngs: Random streams for the initial scales.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> rngs = nnx.Rngs(0)
        >>> layer = nnx.WeightNorm(nnx.Linear(3, 2, rngs=rngs), rngs=rngs)
        >>> y = layer(jnp.ones((2, 3)))
        >>> jnp.linalg.norm(layer.layer_instance.kernel[...], axis=0).round(3)
        Array([1., 1.], dtype=float32)
    """

    def __init__(
        self,
        layer_instance: Callable[..., Any],
        *,
        feature_axes: Axes | None = -1,
        use_scale: bool = True,
        scale_init: Init = ones,
        epsilon: float = 1e-12,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        variable_filter: Filter = _KERNELS,
        promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
    ):
        self.layer_instance = layer_instance
        self.feature_axes = feature_axes
        self.use_scale = use_scale
        self.scale_init = scale_init
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.variable_filter = variable_filter
        self.promote_dtype = promote_dtype
        scales = {}
        if use_scale:
            for path, kernel in _params(layer_instance, variable_filter):
                # Flax draws no key here, so a key is drawn only if the initializer needs one.
                key = None if scale_init in (ones, zeros) else rngs.params()
                scales[path] = Param(scale_init(key, self._scale_shape(kernel), param_dtype))
        self.scales = data(scales)

    def _scale_shape(self, kernel: Variable[Any]) -> tuple[int, ...]:
        if self.feature_axes is None:
            return ()
        axes = (self.feature_axes,) if isinstance(self.feature_axes, int) else self.feature_axes
        return tuple(kernel.shape[axis] for axis in axes)

    @names_its_place
    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Normalizes the kernels, writes them into the layer and calls it with these arguments."""
        for path, kernel in _params(self.layer_instance, self.variable_filter):
            value = ops.weight_norm(
                kernel[...],
                self.scales[path][...] if self.use_scale else None,
                feature_axes=self.feature_axes,
                epsilon=self.epsilon,
                dtype=self.dtype,
            )
            kernel.set_value(value)
        return self.layer_instance(x, *args, **kwargs)


def _params(layer: Callable[..., Any], chosen: Filter) -> list[tuple[tuple[Any, ...], Variable[Any]]]:
    """The parameters of a layer that a filter chooses (not copies), with their paths."""
    matches = to_predicate(chosen)
    return [
        (path, value)
        for path, value in iter_graph(layer, graph=True)
        if isinstance(value, Param) and matches(path, value)
    ]
