"""The feed-forward layer of transformers, plain or gated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sonde.core import sow
from sonde.nnx.layers.linear import Linear
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.rngs import Rngs
from sonde.ops.dtypes import Dtype


class MLP(Module):
    """Two linear maps with a nonlinearity between them, or three if gated: `down(activation(gate(x)) * up(x))`.

    Sites: `pre` (before the nonlinearity), `up` (what it multiplies, if gated), `hidden` (what `down` is given), `out`.

    Args:
        features: Number of input and output features.
        hidden: Number of hidden features.
        activation: The nonlinearity.
        gated: Whether one map, after the nonlinearity, multiplies another.
        use_bias: Whether the maps have biases.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype that parameters are stored in.
        rngs: Random streams for the initial parameters.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> nnx.MLP(4, 16, activation=nnx.silu, gated=True, rngs=nnx.Rngs(0))(jnp.ones((2, 4))).shape
        (2, 4)
    """

    def __init__(
        self,
        features: int,
        hidden: int,
        *,
        activation: Callable[[jax.Array], jax.Array] = jax.nn.gelu,
        gated: bool = False,
        use_bias: bool = True,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        rngs: Rngs,
    ):
        options: dict[str, Any] = {"use_bias": use_bias, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.up = Linear(features, hidden, **options)
        self.gate: Linear | None = data(Linear(features, hidden, **options) if gated else None)
        self.down = Linear(hidden, features, **options)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the maps to `(..., features)`."""
        if self.gate is None:
            hidden = self.activation(sow(self.up(x), "pre"))
        else:
            hidden = self.activation(sow(self.gate(x), "pre")) * sow(self.up(x), "up")
        return sow(self.down(sow(hidden, "hidden")), "out")
