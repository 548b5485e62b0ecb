"""Activations that have a parameter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.nnx.layers.parameters import NO_METADATA, Metadata
from sonde.nnx.modules.module import Module
from sonde.nnx.variable.kinds import Param
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_all, promote_dtype


class PReLU(Module):
    """Multiplies negative inputs by a learned slope.

    Args:
        negative_slope_init: The initial slope.
        dtype: The dtype to compute in; None takes that of the inputs.
        param_dtype: The dtype that the slope is stored in.
        promote_dtype: How inputs and slope are cast, if `dtype` is given.
        negative_slope_metadata: Metadata of the slope's Variable.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> nnx.PReLU(0.5)(jnp.array([-2.0, 3.0]))
        Array([-1.,  3.], dtype=float32)
    """

    def __init__(
        self,
        negative_slope_init: float = 0.01,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        promote_dtype: PromoteDtype = promote_dtype,
        negative_slope_metadata: Metadata = NO_METADATA,
    ):
        self.negative_slope: Param[Any] = Param(
            jnp.asarray(negative_slope_init, param_dtype), **negative_slope_metadata
        )
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.promote_dtype = promote_dtype

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Applies the activation to any array."""
        slope = self.negative_slope[...]
        if self.dtype is None:
            return ops.prelu(inputs, jnp.asarray(slope, jnp.result_type(inputs)))
        return ops.prelu(*promote_all(self.promote_dtype, (inputs, slope), self.dtype))
