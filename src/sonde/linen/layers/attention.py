"""Attention: the functions, and the layers around them."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import PrecisionLike

from sonde import ops
from sonde.linen.layers.linear import DenseGeneral
from sonde.linen.layers.norm import LayerNorm
from sonde.linen.modules.attach import describe
from sonde.linen.modules.methods import compact, nowrap
from sonde.linen.modules.module import Module, merge_param
from sonde.ops.default_initializers import default_bias_init, default_kernel_init
from sonde.ops.dtypes import Dtype


def _einsum(dot_general: Callable[..., Any] | None, replacement: Callable[..., Any] | None) -> Callable[..., Any]:
    if dot_general is not None and replacement is not None:
        raise ValueError("attention takes a replacement for dot_general or for einsum, got both")
    if dot_general is not None:
        return functools.partial(jnp.einsum, _dot_general=dot_general)
    return jnp.einsum if replacement is None else replacement


def _sow_weights(module: Module | None) -> Callable[[jax.Array], Any] | None:
    return None if module is None else lambda weights: module.sow("intermediates", "attention_weights", weights)


def dot_product_attention_weights(
    query: jax.Array,
    key: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    module: Module | None = None,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: Callable[..., Any] | None = None,
    einsum: Callable[..., Any] | None = None,
) -> jax.Array:
    """The attention weights: how much every query attends to every key.

    Args:
        query: `(batch..., queries, heads, depth)`.
        key: `(batch..., keys, heads, depth)`.
        bias: Added to the scores, of shape `(batch..., heads, queries, keys)`.
        mask: Which keys each query may attend to, of the same shape.
        broadcast_dropout: Whether dropout is the same for all batch elements and heads.
        dropout_rng: The random key for dropout.
        dropout_rate: The probability of being dropped.
        deterministic: Whether to drop nothing.
        dtype: The dtype to compute in; None derives it from the inputs.
        precision: The precision of the product.
        module: A module that sows the weights as `attention_weights`.
        force_fp32_for_softmax: Whether softmax runs in float32.
        einsum_dot_general: A replacement for `jax.lax.dot_general`.
        einsum: A replacement for `jax.numpy.einsum`.

    Returns:
        `(batch..., heads, queries, keys)`.
    """
    return ops.dot_product_attention_weights(
        query,
        key,
        bias=bias,
        mask=mask,
        broadcast_dropout=broadcast_dropout,
        dropout_rng=dropout_rng,
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        dtype=dtype,
        precision=precision,
        force_fp32_for_softmax=force_fp32_for_softmax,
        einsum=_einsum(einsum_dot_general, einsum),
        report=_sow_weights(module),
    )


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    bias: jax.Array | None = None,
    mask: jax.Array | None = None,
    broadcast_dropout: bool = True,
    dropout_rng: jax.Array | None = None,
    dropout_rate: float = 0.0,
    deterministic: bool = False,
    dtype: Dtype | None = None,
    precision: PrecisionLike = None,
    module: Module | None = None,
    force_fp32_for_softmax: bool = False,
    einsum_dot_general: Callable[..., Any] | None = None,
    qk_attn_weights_einsum: Callable[..., Any] | None = None,
    attn_weights_value_einsum: Callable[..., Any] | None = None,
) -> jax.Array:
    """Dot-product attention: the values, averaged by the attention weights of every query.

    `value` is `(batch..., keys, heads, value depth)`, and the result `(batch..., queries, heads, value depth)`. The two
    last arguments replace `jax.numpy.einsum` in the product of queries and keys and in that of weights and values: give
    both or neither. The others are those of `nn.dot_product_attention_weights`.

    Example:
        >>> import jax.numpy as jnp
        >>> q, kv = jnp.ones((2, 5, 4, 8)), jnp.ones((2, 7, 4, 8))
        >>> dot_product_attention(q, kv, kv).shape
        (2, 5, 4, 8)
    """
    if (qk_attn_weights_einsum is None) != (attn_weights_value_einsum is None):
        raise ValueError("qk_attn_weights_einsum and attn_weights_value_einsum must be given together: one is missing")
    if qk_attn_weights_einsum is not None and not (precision is None and einsum_dot_general is None):
        raise ValueError(
            "precision and einsum_dot_general do not apply to replaced products: leave them out with "
            "qk_attn_weights_einsum and attn_weights_value_einsum"
        )
    return ops.dot_product_attention(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        broadcast_dropout=broadcast_dropout,
        dropout_rng=dropout_rng,
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        dtype=dtype,
        precision=precision,
        force_fp32_for_softmax=force_fp32_for_softmax,
        qk_einsum=_einsum(einsum_dot_general, qk_attn_weights_einsum),
        value_einsum=_einsum(einsum_dot_general, attn_weights_value_einsum),
        report=_sow_weights(module),
    )


class MultiHeadDotProductAttention(Module):
    """Attention with several heads and linear maps before and after.

    Attributes:
        num_heads: The number of heads; must divide `qkv_features`.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype of the parameters.
        qkv_features: The features of queries, keys and values, all heads together; those of the inputs if None.
        out_features: The features of the output; those of the inputs if None.
        broadcast_dropout: Whether dropout is the same for all batch elements and heads.
        dropout_rate: The probability of a weight being dropped.
        deterministic: Whether to drop nothing; may be given to the call instead.
        precision: The precision of all products.
        kernel_init: Initializer of the kernels.
        out_kernel_init: Initializer of the kernel of the output, `kernel_init` if None.
        bias_init: Initializer of the biases.
        out_bias_init: Initializer of the bias of the output, `bias_init` if None.
        use_bias: Whether the linear maps have biases.
        attention_fn: A replacement for `dot_product_attention`; it gets the keyword arguments that it knows.
        decode: Whether to keep keys and values in the collection `cache` and take one position per call.
        normalize_qk: Whether queries and keys are normalized.
        force_fp32_for_softmax: Whether softmax runs in float32.
        qkv_dot_general, qkv_dot_general_cls: Replace `jax.lax.dot_general` in the linear maps before attention.
        out_dot_general, out_dot_general_cls: Replace `jax.lax.dot_general` in the linear map after attention.
        qk_attn_weights_einsum_cls: Makes a replacement for `jax.numpy.einsum` of queries and keys.
        attn_weights_value_einsum_cls: Makes a replacement for `jax.numpy.einsum` of weights and values.
    """

    num_heads: int
    dtype: Any = None
    param_dtype: Any = jnp.float32
    qkv_features: int | None = None
    out_features: int | None = None
    broadcast_dropout: bool = True
    dropout_rate: float = 0.0
    deterministic: bool | None = None
    precision: Any = None
    kernel_init: Callable[..., Any] = default_kernel_init
    out_kernel_init: Callable[..., Any] | None = None
    bias_init: Callable[..., Any] = default_bias_init
    out_bias_init: Callable[..., Any] | None = None
    use_bias: bool = True
    attention_fn: Callable[..., Any] = dot_product_attention
    decode: bool = False
    normalize_qk: bool = False
    force_fp32_for_softmax: bool = False
    qkv_dot_general: Callable[..., Any] | None = None
    out_dot_general: Callable[..., Any] | None = None
    qkv_dot_general_cls: Any = None
    out_dot_general_cls: Any = None
    qk_attn_weights_einsum_cls: Callable[..., Any] | None = None
    attn_weights_value_einsum_cls: Callable[..., Any] | None = None

    @compact
    def __call__(
        self,
        inputs_q: jax.Array,
        inputs_k: jax.Array | None = None,
        inputs_v: jax.Array | None = None,
        *,
        inputs_kv: jax.Array | None = None,
        mask: jax.Array | None = None,
        deterministic: bool | None = None,
        dropout_rng: jax.Array | None = None,
        sow_weights: bool = False,
    ) -> jax.Array:
        """Applies attention.

        Args:
            inputs_q: `(batch..., length, features)`, from which queries are computed.
            inputs_k: The inputs of the keys; `inputs_q` if None.
            inputs_v: The inputs of the values; `inputs_k` if None.
            inputs_kv: Both of these, for older code.
            mask: Which keys each query may attend to, `(batch..., heads, queries, keys)`.
            deterministic: As the field of that name.
            dropout_rng: The random key for dropout; one of stream `dropout` if None.
            sow_weights: Whether to sow the weights as `attention_weights` into `intermediates`.
        """
        of_keys, of_values = self._keys_and_values(inputs_q, inputs_k, inputs_v, inputs_kv)
        features = self.qkv_features or inputs_q.shape[-1]
        if features % self.num_heads:
            raise ValueError(
                f"{describe(self)}: qkv_features={features} cannot be divided evenly among num_heads={self.num_heads}"
            )
        project = functools.partial(
            DenseGeneral,
            features=(self.num_heads, features // self.num_heads),
            kernel_init=self.kernel_init,
            bias_init=self.bias_init,
            dot_general=self.qkv_dot_general,
            dot_general_cls=self.qkv_dot_general_cls,
            **self._shared_options(),
        )
        query = project(name="query")(inputs_q)
        key = project(name="key")(of_keys)
        value = project(name="value")(of_values)
        if self.normalize_qk:
            norm = functools.partial(LayerNorm, use_bias=False, dtype=self.dtype, param_dtype=self.param_dtype)
            query, key = norm(name="query_ln")(query), norm(name="key_ln")(key)
        if self.decode:
            key, value, mask = self._decoded(query, key, value, mask)
        drops_nothing = True
        if self.dropout_rate > 0.0:
            drops_nothing = merge_param("deterministic", self.deterministic, deterministic)
            if not drops_nothing and dropout_rng is None:
                dropout_rng = self.make_rng("dropout")
        options: dict[str, Any] = {
            "mask": mask,
            "dropout_rng": dropout_rng,
            "dropout_rate": self.dropout_rate,
            "broadcast_dropout": self.broadcast_dropout,
            "deterministic": drops_nothing,
            "dtype": self.dtype,
            "precision": self.precision,
            "force_fp32_for_softmax": self.force_fp32_for_softmax,
            "qk_attn_weights_einsum": _made(self.qk_attn_weights_einsum_cls),
            "attn_weights_value_einsum": _made(self.attn_weights_value_einsum_cls),
        }
        # A user's `attention_fn` may take only some of the options.
        accepted = inspect.signature(self.attention_fn).parameters
        options = {name: option for name, option in options.items() if name in accepted}
        if sow_weights:
            options["module"] = self
        mixed = self.attention_fn(query, key, value, **options)
        return DenseGeneral(
            features=self.out_features or inputs_q.shape[-1],
            axis=(-2, -1),
            kernel_init=self.out_kernel_init or self.kernel_init,
            bias_init=self.out_bias_init or self.bias_init,
            dot_general=self.out_dot_general,
            dot_general_cls=self.out_dot_general_cls,
            name="out",
            **self._shared_options(),
        )(mixed)

    @nowrap
    def _shared_options(self) -> dict[str, Any]:
        return {
            "use_bias": self.use_bias,
            "dtype": self.dtype,
            "param_dtype": self.param_dtype,
            "precision": self.precision,
        }

    @nowrap
    def _keys_and_values(
        self, q: jax.Array, k: jax.Array | None, v: jax.Array | None, kv: jax.Array | None
    ) -> tuple[Any, Any]:
        if kv is not None:
            if k is not None or v is not None:
                raise ValueError(
                    f"{describe(self)}: inputs_kv replaces inputs_k and inputs_v: give one or the other, not both"
                )
            self._deprecated("inputs_kv is an old name: give inputs_k, which serves as both keys and values")
            return kv, kv
        if k is None and v is not None:
            raise ValueError(f"{describe(self)}: inputs_v is given but inputs_k is not; inputs_k alone serves as both")
        if v is not None and jnp.ndim(v) == jnp.ndim(q) + 1:
            self._deprecated("the third argument is inputs_v, but it looks like a mask: pass the mask by keyword")
        k = q if k is None else k
        return k, k if v is None else v

    @nowrap
    def _deprecated(self, text: str) -> None:
        warnings.warn(f"{describe(self)}: {text}", DeprecationWarning, stacklevel=2)

    @nowrap
    def _decoded(
        self, query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None
    ) -> tuple[Any, Any, Any]:
        """Puts one position into the cache; returns all keys and values, and the mask of those written so far."""
        # The first call, during `init`, makes an empty cache of the whole length and attends as usual.
        filling = self.has_variable("cache", "cached_key")
        forms = {"cached_key": key, "cached_value": value, "cache_index": np.int32(0)}
        cache = {name: self.variable("cache", name, jnp.zeros, x.shape, x.dtype) for name, x in forms.items()}
        if not filling:
            return key, value, mask
        keys, values, index = (variable.value for variable in cache.values())
        *written, mask = ops.decode_step(
            query, key, value, cached_key=keys, cached_value=values, index=index, mask=mask
        )
        for variable, new_value in zip(cache.values(), written):
            variable.value = new_value
        return written[0], written[1], mask


def _made(make: Callable[..., Any] | None) -> Any:
    return None if make is None else make()


class MultiHeadAttention(MultiHeadDotProductAttention):
    """A shorter name for `MultiHeadDotProductAttention`."""


class SelfAttention(MultiHeadDotProductAttention):
    """Attention of a sequence to itself; fields as in `MultiHeadDotProductAttention`."""

    @compact
    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        inputs_q: jax.Array,
        mask: jax.Array | None = None,
        deterministic: bool | None = None,
        dropout_rng: jax.Array | None = None,
        sow_weights: bool = False,
    ) -> jax.Array:
        """Applies attention; arguments as in `MultiHeadDotProductAttention`."""
        return super().__call__(
            inputs_q, mask=mask, deterministic=deterministic, dropout_rng=dropout_rng, sow_weights=sow_weights
        )
