"""Normalization of another layer's weights: `SpectralNorm` and `WeightNorm`.

The layer sees its parameters normalized (`nn.map_variables`); they are stored as they are. The variables of the
normalization are named after the parameter: `Dense_0/kernel/scale`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.linen.modules.attach import describe
from sonde.linen.modules.methods import compact, nowrap
from sonde.linen.modules.module import Module
from sonde.linen.transforms.rewritten import map_variables
from sonde.ops.default_initializers import ones
from sonde.ops.norm import canonicalize_axes


def _name(layer: Module, path: Sequence[Any]) -> str:
    """The name of a variable below the layer, from its key path, which starts with the collection."""
    names = jax.tree_util.keystr(tuple(path[1:]), simple=True, separator="/")
    return f"{layer.name or type(layer).__name__}/{names}"


class SpectralNorm(Module):
    """Divides the weights of a layer by an estimate of their largest singular value.

    Attributes:
        layer_instance: The layer.
        n_steps: The number of steps of power iteration in each call.
        epsilon: Added to squared lengths.
        dtype: The dtype of the normalized weights; None derives it from the weights.
        param_dtype: The dtype of the iteration's state.
        error_on_non_matrix: Whether weights with more than two axes are an error; otherwise all axes but the last are
            merged.
        collection_name: The collection of the iteration's state.
    """

    layer_instance: Module
    n_steps: int = 1
    epsilon: float = 1e-12
    dtype: Any = None
    param_dtype: Any = jnp.float32
    error_on_non_matrix: bool = False
    collection_name: str = "batch_stats"

    @compact
    def __call__(self, *args: Any, update_stats: bool, **kwargs: Any) -> Any:
        """Calls the layer with normalized weights; `update_stats` stores the iteration's state for the next call."""

        def normalized(variables: Mapping[str, Any]) -> Any:
            return jax.tree_util.tree_map_with_path(lambda p, w: self._normalize(p, w, update_stats), variables)

        def call(layer: Module) -> Any:
            return layer(*args, **kwargs)  # pyright: ignore[reportCallIssue]

        lifted = map_variables(call, trans_in_fn=normalized, init=self.is_initializing(), mutable=True)
        return lifted(self.layer_instance)

    @nowrap
    def _normalize(self, path: Sequence[Any], weight: jax.Array, update_stats: bool) -> jax.Array:
        weight = jnp.asarray(weight)
        if weight.ndim <= 1 or self.n_steps < 1:
            return weight
        if weight.ndim > 2 and self.error_on_non_matrix:
            raise ValueError(
                f"{describe(self)}: weight {_name(self.layer_instance, path)!r} has {weight.ndim} axes, but "
                "error_on_non_matrix is True"
            )
        name = _name(self.layer_instance, path)
        shape = (1, weight.shape[-1])
        make_key = not self.has_variable(self.collection_name, f"{name}/u")
        key = self.make_rng("params") if make_key else None
        u = self.variable(self.collection_name, f"{name}/u", jax.random.normal, key, shape, self.param_dtype)
        sigma = self.variable(self.collection_name, f"{name}/sigma", jnp.ones, (), self.param_dtype)
        normalized, new_u, new_sigma = ops.spectral_norm(
            weight, u.value, n_steps=self.n_steps, epsilon=self.epsilon, dtype=self.dtype
        )
        if update_stats:
            u.value, sigma.value = new_u, new_sigma
        return normalized


class WeightNorm(Module):
    """Scales the weights of each feature of a layer to length 1, or to a learned length.

    Attributes:
        layer_instance: The layer.
        epsilon: Added to squared lengths.
        dtype: The dtype of the normalized weights; None derives it from the weights.
        param_dtype: The dtype of the scale.
        use_scale: Whether to multiply by a learned scale.
        scale_init: Initializer of the scale.
        feature_axes: The axes along which every position has its own length; None for a single length.
        variable_filter: Only variables whose path contains one of these are normalized; None for all.
    """

    layer_instance: Module
    epsilon: float = 1e-12
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_scale: bool = True
    scale_init: Callable[..., Any] = ones
    feature_axes: int | Sequence[int] | None = -1
    variable_filter: Iterable[str] | None = dataclasses.field(default_factory=lambda: {"kernel"})

    @compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer with normalized weights."""

        def normalized(variables: Mapping[str, Any]) -> Any:
            return jax.tree_util.tree_map_with_path(self._normalize, variables)

        def call(layer: Module) -> Any:
            return layer(*args, **kwargs)  # pyright: ignore[reportCallIssue]

        return map_variables(call, trans_in_fn=normalized, init=self.is_initializing())(self.layer_instance)

    @nowrap
    def _normalize(self, path: Sequence[Any], weight: jax.Array) -> jax.Array:
        weight = jnp.asarray(weight)
        name = _name(self.layer_instance, path)
        if self.variable_filter and not any(part in name for part in self.variable_filter):
            return weight
        scale = None
        if self.use_scale:
            axes = () if self.feature_axes is None else canonicalize_axes(self.feature_axes, weight.ndim)
            shape = tuple(weight.shape[axis] for axis in axes)
            scale = self.param(f"{name}/scale", self.scale_init, shape, self.param_dtype)
        return ops.weight_norm(weight, scale, feature_axes=self.feature_axes, epsilon=self.epsilon, dtype=self.dtype)
