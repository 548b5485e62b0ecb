"""`Dense`, `Embed` and `LayerNorm` whose parameters have names for their axes, in the collection `params_axes`.

They are the layers of `sonde.linen`, but compute in float32 by default and make their parameters with
`partitioning.name_axes`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from sonde.linen.layers import linear, norm
from sonde.linen.modules.module import Module
from sonde.linen.sharding.partitioning import name_axes
from sonde.ops.default_initializers import default_bias_init, default_embed_init, default_kernel_init


class _Named:
    """A layer that names the axes of its parameters."""

    axes_of: ClassVar[dict[str, tuple[str, ...]]] = {}

    def param(self, name: str, init_fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A parameter, with names for its axes."""
        module: Any = self
        return name_axes(module, name, Module.param(module, name, init_fn, *args, **kwargs), self._axes(name))

    def _axes(self, name: str) -> tuple[str, ...]:
        return self.axes_of[name]


class Dense(_Named, linear.Dense):
    """`linen.Dense` with names for the axes of its kernel.

    Attributes:
        kernel_axes: The names; the bias has the last one.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde.linen.experimental.layers_with_named_axes import Dense
        >>> variables = Dense(4, kernel_axes=("embed", "mlp")).init(jax.random.key(0), jnp.ones((1, 3)))
        >>> tuple(variables["params_axes"]["kernel_axes"].names)
        ('embed', 'mlp')
    """

    dtype: Any = jnp.float32
    kernel_init: Callable[..., Any] = default_kernel_init
    bias_init: Callable[..., Any] = default_bias_init
    kernel_axes: tuple[str, ...] = ()

    def _axes(self, name: str) -> tuple[str, ...]:
        return self.kernel_axes if name == "kernel" else self.kernel_axes[-1:]


class Embed(_Named, linear.Embed):
    """`linen.Embed` with axes named `vocab` and `embed`.

    Attributes:
        cast_input_dtype: The dtype that the indices are converted to first; None to leave them.
        attend_dtype: The dtype that `attend` converts the query to; `dtype` if it is None.
        one_hot: Whether to multiply by one-hot vectors instead of looking rows up.
    """

    axes_of: ClassVar[dict[str, tuple[str, ...]]] = {"embedding": ("vocab", "embed")}

    dtype: Any = jnp.float32
    embedding_init: Callable[..., Any] = default_embed_init
    cast_input_dtype: Any = None
    attend_dtype: Any = None
    one_hot: bool = False

    def __call__(self, inputs: jax.Array) -> Any:
        """The rows at these indices."""
        inputs = jnp.asarray(inputs, self.cast_input_dtype)
        if not self.one_hot:
            return super().__call__(inputs)
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise ValueError(f"Embed takes integers, got {inputs.dtype}.")
        chosen = (inputs[..., None] == jnp.arange(self.num_embeddings)).astype(self.dtype)
        return jnp.dot(chosen, jnp.asarray(self.embedding, self.dtype))

    def attend(self, query: jax.Array) -> Any:
        """The products of a query with every row."""
        dtype = self.dtype if self.attend_dtype is None else self.attend_dtype
        return jnp.dot(jnp.asarray(query, dtype), jnp.asarray(self.embedding, dtype).T)


class LayerNorm(_Named, norm.LayerNorm):
    """`linen.LayerNorm` with an axis named `embed`."""

    axes_of: ClassVar[dict[str, tuple[str, ...]]] = {"scale": ("embed",), "bias": ("embed",)}

    dtype: Any = jnp.float32
