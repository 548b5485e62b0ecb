"""Linear maps and embeddings: `Dense`, `DenseGeneral`, `Einsum`, `Embed`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.linen.dtypes import promote_dtype
from sonde.linen.layers.parameters import kernel_and_bias, options_of
from sonde.linen.modules.methods import compact
from sonde.linen.modules.module import Module, merge_param
from sonde.linen.sharding import meta
from sonde.ops.default_initializers import default_bias_init, default_embed_init, default_kernel_init, matrix_shape
from sonde.ops.dtypes import Dtype
from sonde.ops.layer_options import DENSE, EINSUM, EMBED


class Dense(Module):
    """A linear map over the last axis.

    Attributes:
        features: The number of output features.
        use_bias: Whether to add a bias.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype of the parameters.
        precision: As in `jax.lax.dot_general`.
        kernel_init: Initializer of the kernel, of shape (input features, features).
        bias_init: Initializer of the bias.
        promote_dtype: How arrays are cast to `dtype`.
        dot_general: A replacement for `jax.lax.dot_general`.
        dot_general_cls: Makes one, such as a module class.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> y, variables = nn.Dense(4).init_with_output(jax.random.key(0), jnp.ones((1, 3)))
        >>> y.shape, variables["params"]["kernel"].shape
        ((1, 4), (3, 4))
    """

    features: int
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Callable[..., Any] = default_kernel_init
    bias_init: Callable[..., Any] = default_bias_init
    promote_dtype: Callable[..., Any] = promote_dtype
    dot_general: Callable[..., Any] | None = None
    dot_general_cls: Any = None

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps the last axis of the inputs."""
        shape = (jnp.shape(inputs)[-1], self.features)
        kernel, bias = kernel_and_bias(self, shape, (self.features,))
        return ops.dense(inputs, kernel, bias, **options_of(self, DENSE))


def drawn_as(flat_shape: Callable[[Sequence[int]], Sequence[int]], init: Callable[..., Any]) -> Callable[..., Any]:
    """An initializer that draws an array in another shape and reshapes it, inside its box if `init` boxes it."""

    def draw(rng: jax.Array, shape: Sequence[int], dtype: Dtype) -> Any:
        value = init(rng, tuple(flat_shape(shape)), dtype)
        return meta.replace_boxed(value, jnp.reshape(meta.unbox(value), shape))

    return draw


def _axes(axes: int | Iterable[int]) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else tuple(axes)


class DenseGeneral(Module):
    """A linear map over any axes, to any number of output axes.

    Attributes:
        features: The sizes of the output axes.
        axis: The axes that are contracted.
        batch_dims: Axes along which every position has a separate kernel; they come first in the output.
        kernel_init: Initializer of the kernel, of shape (batch axes, contracted axes, features).
        bias_init: Initializer of the bias, of shape (batch axes, features).
        The others are those of `nn.Dense`.
    """

    features: int | Sequence[int]
    axis: int | Sequence[int] = -1
    batch_dims: Sequence[int] = ()
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Callable[..., Any] = default_kernel_init
    bias_init: Callable[..., Any] = default_bias_init
    precision: Any = None
    promote_dtype: Callable[..., Any] = promote_dtype
    dot_general: Callable[..., Any] | None = None
    dot_general_cls: Any = None

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Maps the chosen axes of the inputs."""
        features, axis, batch = _axes(self.features), _axes(self.axis), _axes(self.batch_dims)
        if batch and sorted(batch) != list(range(len(batch))):
            raise ValueError(f"batch_dims={batch} must be the first axes of the inputs: (0,), (0, 1) and so on")
        ndim = jnp.ndim(inputs)
        axis = tuple(sorted(ax % ndim for ax in axis))  # the kernel's axes have the order of the inputs
        sizes = tuple(jnp.shape(inputs)[ax] for ax in (*batch, *axis))
        n_batch, n_in = len(batch), len(axis)
        kernel_init = drawn_as(lambda shape: matrix_shape(shape, n_batch=n_batch, n_in=n_in), self.kernel_init)
        kernel = self.param("kernel", kernel_init, (*sizes, *features), self.param_dtype)
        bias = None
        if self.use_bias:
            shape = (*sizes[: len(batch)], *features)
            bias_init = drawn_as(lambda shape: (math.prod(shape),), self.bias_init)
            bias = self.param("bias", bias_init, shape, self.param_dtype)
        return ops.dense_general(inputs, kernel, bias, axis=axis, batch_axis=batch, **options_of(self, DENSE))


class Einsum(Module):
    """A linear map by an einsum equation.

    Attributes:
        shape: The shape of the kernel.
        einsum_str: The equation, inputs first, such as `"nta,abc->ntbc"`; may be given to the call instead.
        use_bias: Whether to add a bias, along those axes of the kernel that are in the output.
        precision: As in `jax.numpy.einsum`.
        kernel_init: Initializer of the kernel.
        preferred_element_type: As in `jax.numpy.einsum`.
        The others are those of `nn.Dense`.
    """

    shape: Sequence[int]
    einsum_str: str | None = None
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Callable[..., Any] = default_kernel_init
    bias_init: Callable[..., Any] = default_bias_init
    promote_dtype: Callable[..., Any] = promote_dtype
    preferred_element_type: Any = None

    @compact
    def __call__(self, inputs: jax.Array, einsum_str: str | None = None) -> jax.Array:
        """Applies the equation to the inputs and the kernel."""
        equation = merge_param("einsum_str", self.einsum_str, einsum_str)
        shape = tuple(self.shape)
        kernel, bias = kernel_and_bias(self, shape, lambda: ops.einsum_bias_shape(equation, shape))
        return ops.einsum(equation, inputs, kernel, bias, **options_of(self, EINSUM))


class Embed(Module):
    """A table of vectors, looked up by index.

    Attributes:
        num_embeddings: The number of vectors.
        features: The length of a vector.
        dtype: The dtype of the output; None for that of the table.
        param_dtype: The dtype of the table.
        embedding_init: Initializer of the table.
        promote_dtype: How arrays are cast to `dtype`.
    """

    num_embeddings: int
    features: int
    dtype: Any = None
    param_dtype: Any = jnp.float32
    embedding_init: Callable[..., Any] = default_embed_init
    promote_dtype: Callable[..., Any] = promote_dtype

    def setup(self) -> None:
        """Makes the table."""
        shape = (self.num_embeddings, self.features)
        self.embedding = self.param("embedding", self.embedding_init, shape, self.param_dtype)

    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Looks up the vectors at the given indices."""
        return ops.embed(inputs, self.embedding, **options_of(self, EMBED))

    def attend(self, query: jax.Array) -> jax.Array:
        """The inner product of queries with all vectors, as for logits with tied weights."""
        return ops.attend(query, self.embedding, **options_of(self, EMBED))
