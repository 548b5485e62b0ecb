"""RMSNorm whose scale is stored as its distance from one, as in Gemma's checkpoints."""

from __future__ import annotations

from typing import Any

import jax

from sonde import ops
from sonde.nnx.layers.normalization import RMSNorm
from sonde.nnx.layers.parameters import value_of
from sonde.nnx.layers.place import names_its_place
from sonde.ops.default_initializers import zeros
from sonde.ops.layer_options import LAYER_NORM, options_of


class OffsetRMSNorm(RMSNorm):
    """Divides every position by the root of its mean square and multiplies by `1 + scale`.

    The scale starts at zero, where this is a plain RMSNorm, and weight decay pulls it back there.

    Args:
        num_features: Number of features.
        **options: As in `RMSNorm`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> nnx.OffsetRMSNorm(2, rngs=nnx.Rngs(0))(jnp.array([3.0, -3.0])).round(3)
        Array([ 1., -1.], dtype=float32)
    """

    def __init__(self, num_features: int, **options: Any):
        super().__init__(num_features, **{"scale_init": zeros, **options})

    @names_its_place
    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Normalizes; arguments and result as in `RMSNorm`."""
        scale = value_of(self.scale)
        # The sum is computed in float32: in bfloat16 it would lose digits of the scale.
        scale = None if scale is None else 1.0 + scale.astype("float32")
        dtype = self.dtype or x.dtype
        options = {**options_of(self, LAYER_NORM), "dtype": None}
        return ops.rms_norm(x.astype("float32"), scale, mask=mask, **options).astype(dtype)
