"""Low-rank adaptation: a small trainable correction to a layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.errors import LayerInputError
from sonde.nnx.layers.linear import Linear
from sonde.nnx.layers.parameters import NO_METADATA, Init, Metadata, new_param
from sonde.nnx.layers.place import names_its_place
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.rngs import Rngs
from sonde.nnx.variable.kinds import Param
from sonde.nnx.variable.variable import Variable
from sonde.ops.default_initializers import default_lora_a_init, zeros
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_all, promote_dtype
from sonde.ops.sharding import OutSharding


class LoRAParam(Param[Any]):
    """The type of the correction's parameters, to train only them: `wrt=nnx.LoRAParam`."""


class LoRA(Module):
    """A linear map of low rank, alone or added to the output of another layer.

    Args:
        in_features: Number of input features.
        lora_rank: The rank.
        out_features: Number of output features.
        base_module: A layer whose output is added.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype that parameters are stored in.
        a_initializer: Initializer of the first factor.
        b_initializer: Initializer of the second factor; zeros, so that nothing changes at first.
        lora_param_type: The type of both factors' Variables.
        promote_dtype: How inputs and parameters are cast to `dtype`.
        rngs: Random streams for the initial parameters.
        a_metadata: Metadata of the first factor's Variable.
        b_metadata: Metadata of the second factor's Variable.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.LoRA(3, 2, 4, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((5, 3))).shape
        (5, 4)
    """

    def __init__(
        self,
        in_features: int,
        lora_rank: int,
        out_features: int,
        *,
        base_module: Callable[..., Any] | None = None,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        a_initializer: Init = default_lora_a_init,
        b_initializer: Init = zeros,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
        a_metadata: Metadata = NO_METADATA,
        b_metadata: Metadata = NO_METADATA,
    ):
        self.in_features = in_features
        self.out_features = out_features
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.lora_param_type = lora_param_type
        self.base_module: Any = data(base_module)
        self.promote_dtype = promote_dtype
        shapes = (in_features, lora_rank), (lora_rank, out_features)
        self.lora_a = new_param(self, rngs, a_initializer, shapes[0], param_dtype, a_metadata, kind=lora_param_type)
        self.lora_b = new_param(self, rngs, b_initializer, shapes[1], param_dtype, b_metadata, kind=lora_param_type)

    @names_its_place
    def __call__(self, x: jax.Array, **kwargs: Any) -> jax.Array:
        """Maps `(..., in_features)`, and adds the output of the other layer, which gets `kwargs`."""
        # The other layer gets its input in this dtype too.
        x, a, b = promote_all(self.promote_dtype, (x, self.lora_a[...], self.lora_b[...]), self.dtype)
        y = ops.low_rank(x, a, b)
        if self.base_module is None:
            return y
        base: Any = self.base_module
        if not callable(base):
            raise LayerInputError(f"`base_module` must be callable, got {type(base).__name__}.")
        return jnp.add(y, base(x, **kwargs))  # type: ignore[arg-type]


class LoRALinear(Linear):
    """A `Linear` with a correction of low rank added to it; its state contains that of `Linear`.

    Args:
        lora_rank: The rank of the correction.
        lora_dtype: The dtype to compute the correction in.
        lora_param_dtype: The dtype that the correction's parameters are stored in.
        b_initializer: Initializer of the second factor.
        lora_promote_dtype: How the correction's arrays are cast.
        **kwargs: As in `Linear`.
        The others are those of `nnx.LoRA`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.LoRALinear(3, 4, lora_rank=2, rngs=nnx.Rngs(0))
        >>> bool((layer(jnp.ones((5, 3))) == nnx.Linear(3, 4, rngs=nnx.Rngs(0))(jnp.ones((5, 3)))).all())
        True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        lora_rank: int,
        lora_dtype: Dtype | None = None,
        lora_param_dtype: Dtype = jnp.float32,
        a_initializer: Init = default_lora_a_init,
        b_initializer: Init = zeros,
        lora_param_type: type[Variable[Any]] = LoRAParam,
        lora_promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
        a_metadata: Metadata = NO_METADATA,
        b_metadata: Metadata = NO_METADATA,
        **kwargs: Any,
    ):
        super().__init__(in_features, out_features, rngs=rngs, **kwargs)
        self.lora = LoRA(
            in_features,
            lora_rank,
            out_features,
            dtype=lora_dtype,
            param_dtype=lora_param_dtype,
            a_initializer=a_initializer,
            b_initializer=b_initializer,
            lora_param_type=lora_param_type,
            promote_dtype=lora_promote_dtype,
            rngs=rngs,
            a_metadata=a_metadata,
            b_metadata=b_metadata,
        )

    def __call__(self, x: jax.Array, out_sharding: OutSharding | None = None) -> jax.Array:  # type: ignore[override]
        """Applies both maps to `(..., in_features)`; `out_sharding` is for explicit sharding."""
        return super().__call__(x, out_sharding=out_sharding) + self.lora(x)
