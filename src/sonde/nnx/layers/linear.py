"""Linear layers: over the last axis, over any axes, by an einsum; and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import PrecisionLike

from sonde import ops
from sonde.errors import LayerInputError
from sonde.nnx.layers.parameters import NO_METADATA, Init, Metadata, new_param, optional_param, value_of
from sonde.nnx.layers.place import names_its_place
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.rngs import Rngs
from sonde.ops.default_initializers import default_bias_init, default_embed_init, default_kernel_init, matrix_shape
from sonde.ops.dense import DotGeneral
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_dtype
from sonde.ops.layer_options import DENSE, EINSUM, EMBED, options_of
from sonde.ops.sharding import OutSharding


class Linear(Module):
    """A linear map of the last axis.

    Args:
        in_features: Number of input features.
        out_features: Number of output features.
        use_bias: Whether to add a bias.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype that parameters are stored in.
        precision: As in `jax.lax.dot_general`.
        kernel_init: Initializer of the kernel.
        bias_init: Initializer of the bias.
        dot_general: The function to multiply with, in place of `jax.lax.dot_general`.
        promote_dtype: How inputs and parameters are cast to `dtype`.
        preferred_element_type: As in `jax.lax.dot_general`.
        rngs: Random streams for the initial parameters.
        kernel_metadata: Metadata of the kernel's Variable, such as `out_sharding`.
        bias_metadata: Metadata of the bias's Variable.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.Linear(3, 4, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 3))).shape
        (2, 4)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        use_bias: bool = True,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Init = default_kernel_init,
        bias_init: Init = default_bias_init,
        dot_general: Callable[..., jax.Array] = lax.dot_general,
        promote_dtype: PromoteDtype = promote_dtype,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        shape = (in_features, out_features)
        self.kernel = new_param(self, rngs, kernel_init, shape, param_dtype, kernel_metadata)
        self.bias = optional_param(use_bias, self, rngs, bias_init, (out_features,), param_dtype, bias_metadata)
        self.in_features = in_features
        self.out_features = out_features
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.dot_general = dot_general
        self.promote_dtype = promote_dtype
        self.preferred_element_type = preferred_element_type

    @names_its_place
    def __call__(self, inputs: jax.Array, out_sharding: OutSharding | None = None) -> jax.Array:
        """Maps `(..., in_features)` to `(..., out_features)`, sharded by `out_sharding` under explicit sharding."""
        return ops.dense(
            inputs,
            self.kernel[...],
            value_of(self.bias),
            preferred_element_type=self.preferred_element_type,
            out_sharding=out_sharding,
            **options_of(self, DENSE),
        )


class LinearGeneral(Module):
    """A linear map of any axes, with a separate map for every position of the batch axes.

    Args:
        in_features: Lengths of the contracted axes.
        out_features: Lengths of the axes that replace them, at the end.
        axis: The contracted axes.
        batch_axis: Leading axes with separate maps, by their lengths: `{0: 8}`.
        kernel_init: Initializer of the kernel, which is drawn as a matrix.
        dot_general_cls: A class whose instances are such functions; used if `dot_general` is None.
        kernel_metadata: Metadata of the kernel's Variable.
        The others are those of `nnx.Linear`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.LinearGeneral((5, 3), (4, 6), axis=(1, -1), rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 5, 7, 3))).shape
        (2, 7, 4, 6)
    """

    def __init__(
        self,
        in_features: int | Sequence[int],
        out_features: int | Sequence[int],
        *,
        axis: int | Sequence[int] = -1,
        batch_axis: Mapping[int, int] = NO_METADATA,  # type: ignore[assignment]
        use_bias: bool = True,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        kernel_init: Init = default_kernel_init,
        bias_init: Init = default_bias_init,
        precision: PrecisionLike = None,
        promote_dtype: PromoteDtype = promote_dtype,
        dot_general: Callable[..., jax.Array] | None = None,
        dot_general_cls: Callable[[], DotGeneral] | None = None,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        self.in_features = _as_tuple(in_features)
        self.out_features = _as_tuple(out_features)
        self.axis = _as_tuple(axis)
        # These are part of the layer's structure, so they must be hashable.
        self.batch_axis = tuple(sorted(batch_axis.items()))
        self.use_bias = use_bias
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.dot_general = dot_general
        self.dot_general_cls = dot_general_cls
        self.promote_dtype = promote_dtype
        self.preferred_element_type = preferred_element_type
        name = type(self).__name__
        if len(self.in_features) != len(self.axis):
            raise LayerInputError(
                f"in_features={self.in_features} and axis={self.axis} must have one entry for every contracted axis.",
                place=name,
            )
        axes = tuple(axis for axis, _ in self.batch_axis)
        if axes != tuple(range(len(axes))):
            raise LayerInputError(
                f"the axes of batch_axis, {axes}, must be the first axes in order: (0,), (0, 1) and so on.", place=name
            )
        batch = tuple(size for _, size in self.batch_axis)
        shape = batch + self.in_features + self.out_features
        self.kernel = new_param(
            self,
            rngs,
            kernel_init,
            shape,
            param_dtype,
            kernel_metadata,
            drawn_as=matrix_shape(shape, n_batch=len(batch), n_in=len(self.in_features)),
        )
        shape = batch + self.out_features
        self.bias = optional_param(
            use_bias,
            self,
            rngs,
            bias_init,
            shape,
            param_dtype,
            bias_metadata,
            drawn_as=(matrix_shape(shape, n_batch=0, n_in=0)[1],),
        )

    @names_its_place
    def __call__(self, inputs: jax.Array, out_sharding: OutSharding | None = None) -> jax.Array:
        """Maps the contracted axes; returns the axes (batch, remaining axes, out_features).

        `out_sharding` is the sharding of the result, under explicit sharding.
        """
        options = options_of(self, DENSE)
        if self.dot_general is None:
            options["dot_general"] = lax.dot_general if self.dot_general_cls is None else self.dot_general_cls()
        return ops.dense_general(
            inputs,
            self.kernel[...],
            value_of(self.bias),
            axis=self.axis,
            batch_axis=tuple(axis for axis, _ in self.batch_axis),
            preferred_element_type=self.preferred_element_type,
            out_sharding=out_sharding,
            **options,
        )


class Einsum(Module):
    """A linear map by an einsum equation.

    Args:
        einsum_str: Two operands, the inputs first: `"...d,dhk->...hk"`.
        kernel_shape: The shape of the second operand.
        bias_shape: The shape of the bias: the kernel's axes that the result has, in its order; None for no bias.
        precision: As in `jnp.einsum`.
        einsum_op: The function to use in place of `jnp.einsum`.
        preferred_element_type: As in `jnp.einsum`.
        kernel_metadata: Metadata of the kernel's Variable.
        The others are those of `nnx.Linear`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.Einsum("ntd,dhk->nthk", (3, 4, 6), (4, 6), rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 5, 3))).shape
        (2, 5, 4, 6)
    """

    def __init__(
        self,
        einsum_str: str,
        kernel_shape: int | Sequence[int],
        bias_shape: int | Sequence[int] | None = None,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        precision: PrecisionLike = None,
        kernel_init: Init = default_kernel_init,
        bias_init: Init = default_bias_init,
        promote_dtype: PromoteDtype = promote_dtype,
        einsum_op: Callable[..., jax.Array] = jnp.einsum,
        preferred_element_type: Dtype | None = None,
        rngs: Rngs,
        kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
    ):
        kernel_shape = _as_tuple(kernel_shape)
        bias_shape = None if bias_shape is None else _as_tuple(bias_shape)
        _check_equation(self, einsum_str, kernel_shape)
        self.kernel = new_param(self, rngs, kernel_init, kernel_shape, param_dtype, kernel_metadata)
        self.bias = optional_param(
            bias_shape is not None, self, rngs, bias_init, bias_shape, param_dtype, bias_metadata
        )
        self.einsum_str = einsum_str
        self.kernel_shape = kernel_shape
        self.bias_shape = bias_shape
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.promote_dtype = promote_dtype
        self.einsum_op = einsum_op
        self.preferred_element_type = preferred_element_type

    @names_its_place
    def __call__(
        self, inputs: jax.Array, einsum_str: str | None = None, out_sharding: OutSharding | None = None
    ) -> jax.Array:
        """The result of the equation, plus the bias.

        Args:
            inputs: The first operand.
            einsum_str: Overrides the layer's equation.
            out_sharding: Sharding of the result, under explicit sharding.
        """
        return ops.einsum(
            self.einsum_str if einsum_str is None else einsum_str,
            inputs,
            self.kernel[...],
            value_of(self.bias),
            einsum_op=self.einsum_op,
            out_sharding=out_sharding,
            **options_of(self, EINSUM),
        )


class Embed(Module):
    """A table of vectors, looked up by index.

    An index outside the table gives NaN.

    Args:
        num_embeddings: Number of vectors.
        features: Their length.
        dtype: The dtype of the result; None keeps the table's.
        param_dtype: The dtype that the table is stored in.
        embedding_init: Initializer of the table.
        promote_dtype: How vectors are cast to `dtype`.
        rngs: Random streams for the initial table.
        embedding_metadata: Metadata of the table's Variable.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.Embed(10, 4, rngs=nnx.Rngs(0))
        >>> layer(jnp.array([1, 5])).shape, layer.attend(jnp.ones((2, 4))).shape
        ((2, 4), (2, 10))
    """

    def __init__(
        self,
        num_embeddings: int,
        features: int,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        embedding_init: Init = default_embed_init,
        promote_dtype: PromoteDtype = promote_dtype,
        rngs: Rngs,
        embedding_metadata: Metadata = NO_METADATA,
    ):
        shape = (num_embeddings, features)
        self.embedding = new_param(self, rngs, embedding_init, shape, param_dtype, embedding_metadata)
        self.num_embeddings = num_embeddings
        self.features = features
        self.dtype = dtype or self.embedding.dtype
        self.param_dtype = param_dtype
        self.promote_dtype = promote_dtype

    @names_its_place
    def __call__(self, inputs: jax.Array, out_sharding: OutSharding | None = None) -> jax.Array:
        """Looks up the vectors of integers: `(*inputs.shape, features)`.

        `out_sharding` is the sharding of the result, under explicit sharding.
        """
        return ops.embed(inputs, self.embedding[...], out_sharding=out_sharding, **options_of(self, EMBED))

    @names_its_place
    def attend(self, query: jax.Array, out_sharding: OutSharding | None = None) -> jax.Array:
        """Scores queries `(..., features)` against every vector: the logits of a model with tied weights.

        `out_sharding` is the sharding of the result, `(..., num_embeddings)`, under explicit sharding.
        """
        return ops.attend(query, self.embedding[...], out_sharding=out_sharding, **options_of(self, EMBED))


def _as_tuple(value: int | Sequence[int]) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, Sequence) else (value,)


def _check_equation(layer: Module, equation: str, kernel_shape: Sequence[int]) -> None:
    try:
        ops.einsum_bias_shape(equation, kernel_shape)
    except LayerInputError as error:
        error.place = type(layer).__name__
        raise
