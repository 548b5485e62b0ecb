"""Multi-head attention, with dropout, masks, grouped queries and a cache for decoding.

The arithmetic is in `sonde.ops.attention`, with the sites `scores`, `weights` and `heads`: any capture sees them,
without `sow_weights`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import PrecisionLike

from sonde import ops
from sonde.errors import LayerInputError
from sonde.flax.release import follows
from sonde.nnx.layers.linear import LinearGeneral
from sonde.nnx.layers.normalization import LayerNorm
from sonde.nnx.layers.parameters import NO_METADATA, Init, Metadata, chosen
from sonde.nnx.layers.place import names_its_place
from sonde.nnx.layers.stochastic import next_key
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.rngs import Rngs, RngStream
from sonde.nnx.variable.kinds import Cache, Intermediate
from sonde.ops.attention import check_dropout_rate
from sonde.ops.checks import expect_size
from sonde.ops.default_initializers import default_bias_init, default_kernel_init
from sonde.ops.dense import DotGeneral
from sonde.ops.dtypes import Dtype, PromoteDtype, promote_dtype
from sonde.ops.sharding import OutSharding

Shape = tuple[int, ...]


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
    promote_dtype: PromoteDtype = promote_dtype,
    is_causal: bool = False,
) -> jax.Array:
    """Scaled dot-product attention.

    With `dropout_rate=0.0` and without `module` this is `jax.nn.dot_product_attention`.

    Args:
        query: `(batch..., queries, heads, depth)`.
        key: `(batch..., keys, key heads, depth)`.
        value: `(batch..., keys, key heads, depth)`.
        bias: Added to the scores; broadcast to `(batch..., heads, queries, keys)`.
        mask: Broadcast to `(batch..., heads, queries, keys)`; positions that are False get no weight.
        broadcast_dropout: The same dropout for all batch elements and heads.
        dropout_rng: Random key for dropout.
        dropout_rate: The share of weights that is dropped.
        deterministic: Drop nothing.
        dtype: The dtype to compute in; None derives it from the arrays.
        precision: The precision of the products.
        module: A Module that sows the weights as `attention_weights`, an `nnx.Intermediate`. Captures see them anyway.
        promote_dtype: How the arrays are cast to `dtype`.
        is_causal: Mask the positions after the query.

    Returns:
        `(batch..., queries, heads, depth)`.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> q = jnp.ones((2, 5, 4, 8))
        >>> nnx.dot_product_attention(q, q, q, is_causal=True).shape
        (2, 5, 4, 8)
    """
    if module is None and dropout_rate == 0.0 and value.shape[-1] == key.shape[-1]:
        return ops.fused_attention(
            query, key, value, bias=bias, mask=mask, is_causal=is_causal, dtype=dtype, promote_dtype=promote_dtype
        )

    if follows(0, 12, 12):
        check_dropout_rate(dropout_rate)

    def report(weights: jax.Array) -> None:
        if module is not None:
            module.sow(Intermediate, "attention_weights", weights)

    return ops.dot_product_attention(
        query,
        key,
        value,
        bias=bias,
        mask=mask,
        is_causal=is_causal,
        broadcast_dropout=broadcast_dropout,
        dropout_rng=dropout_rng,
        dropout_rate=dropout_rate,
        deterministic=deterministic,
        dtype=dtype,
        precision=precision,
        promote_dtype=promote_dtype,
        report=report,
    )


class MultiHeadAttention(Module):
    """Multi-head attention: every head attends with its own projections.

    Args:
        num_heads: How many heads.
        in_features: How many features the queries' inputs have.
        qkv_features: How many features all heads have together; as many as `in_features` if None.
        out_features: Number of output features; as many as `in_features` if None.
        num_kv_heads: How many heads keys and values have; fewer than `num_heads` means grouped queries.
        in_kv_features: How many features the inputs of keys and values have; as many as `in_features` if None.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype that parameters are stored in.
        broadcast_dropout: The same dropout for all batch elements and heads.
        dropout_rate: The share of weights that is dropped.
        deterministic: Drop nothing; the call can override it.
        precision: The precision of the products.
        kernel_init: Initializer of the kernels.
        out_kernel_init: Initializer of the last kernel, if different.
        bias_init: Initializer of the biases.
        out_bias_init: Initializer of the last bias, if different.
        use_bias: Whether projections have biases.
        attention_fn: The function to use in place of `nnx.dot_product_attention`.
        decode: Whether calls take one position and write it into a cache; the call can override it.
        normalize_qk: Whether queries and keys are normalized before they are compared.
        qkv_promote_dtype: How the first projections cast their arrays.
        out_promote_dtype: How the last projection casts its arrays.
        ln_promote_dtype: How the normalization of queries and keys casts its arrays.
        qkv_dot_general: The function that the first projections multiply with.
        out_dot_general: The function that the last projection multiplies with.
        qkv_dot_general_cls: A class whose instances are such functions.
        out_dot_general_cls: A class whose instances are such functions.
        rngs: Random streams for the initial parameters and for dropout.
        keep_rngs: Whether to keep a stream for dropout; otherwise pass one to the call.
        kernel_metadata: Metadata of the kernels.
        out_kernel_metadata: Metadata of the last kernel, if different.
        bias_metadata: Metadata of the biases.
        out_bias_metadata: Metadata of the last bias, if different.
        query_ln_scale_metadata: Metadata of the scale that normalizes queries.
        key_ln_scale_metadata: Metadata of the scale that normalizes keys.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.MultiHeadAttention(4, 8, decode=False, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((2, 5, 8)), is_causal=True).shape
        (2, 5, 8)
    """

    def __init__(
        self,
        num_heads: int,
        in_features: int,
        qkv_features: int | None = None,
        out_features: int | None = None,
        num_kv_heads: int | None = None,
        in_kv_features: int | None = None,
        *,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        broadcast_dropout: bool = True,
        dropout_rate: float = 0.0,
        deterministic: bool | None = None,
        precision: PrecisionLike = None,
        kernel_init: Init = default_kernel_init,
        out_kernel_init: Init | None = None,
        bias_init: Init = default_bias_init,
        out_bias_init: Init | None = None,
        use_bias: bool = True,
        attention_fn: Callable[..., jax.Array] = dot_product_attention,
        decode: bool | None = None,
        normalize_qk: bool = False,
        qkv_promote_dtype: PromoteDtype = promote_dtype,
        out_promote_dtype: PromoteDtype = promote_dtype,
        ln_promote_dtype: PromoteDtype = promote_dtype,
        qkv_dot_general: Callable[..., jax.Array] | None = None,
        out_dot_general: Callable[..., jax.Array] | None = None,
        qkv_dot_general_cls: Callable[[], DotGeneral] | None = None,
        out_dot_general_cls: Callable[[], DotGeneral] | None = None,
        rngs: Rngs,
        keep_rngs: bool = True,
        kernel_metadata: Metadata = NO_METADATA,
        out_kernel_metadata: Metadata = NO_METADATA,
        bias_metadata: Metadata = NO_METADATA,
        out_bias_metadata: Metadata = NO_METADATA,
        query_ln_scale_metadata: Metadata = NO_METADATA,
        key_ln_scale_metadata: Metadata = NO_METADATA,
    ):
        self.num_heads = num_heads
        self.in_features = in_features
        self.qkv_features = qkv_features if qkv_features is not None else in_features
        self.out_features = out_features if out_features is not None else in_features
        self.in_kv_features = in_kv_features if in_kv_features is not None else in_features
        self.num_kv_heads = num_kv_heads if num_kv_heads is not None else num_heads
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.broadcast_dropout = broadcast_dropout
        self.dropout_rate = dropout_rate
        self.deterministic = deterministic
        self.precision = precision
        self.use_bias = use_bias
        self.attention_fn = attention_fn
        self.decode = decode
        self.normalize_qk = normalize_qk
        self.qkv_promote_dtype = qkv_promote_dtype
        self.out_promote_dtype = out_promote_dtype
        self.ln_promote_dtype = ln_promote_dtype
        self.qkv_dot_general = qkv_dot_general
        self.out_dot_general = out_dot_general
        self.qkv_dot_general_cls = qkv_dot_general_cls
        self.out_dot_general_cls = out_dot_general_cls
        self._check_heads()
        self.head_dim = self.qkv_features // num_heads

        of_all: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        of_maps = {"use_bias": use_bias, "precision": precision, **of_all}

        def projection(in_features: int, heads: int) -> LinearGeneral:
            return LinearGeneral(
                in_features,
                (heads, self.head_dim),
                kernel_init=kernel_init,
                bias_init=bias_init,
                promote_dtype=qkv_promote_dtype,
                dot_general=qkv_dot_general,
                dot_general_cls=qkv_dot_general_cls,
                kernel_metadata=kernel_metadata,
                bias_metadata=bias_metadata,
                **of_maps,
            )

        self.query = projection(in_features, num_heads)
        self.key = projection(self.in_kv_features, self.num_kv_heads)
        self.value = projection(self.in_kv_features, self.num_kv_heads)

        def norm(metadata: Metadata) -> LayerNorm | None:
            options = {"use_bias": False, "promote_dtype": ln_promote_dtype, "scale_metadata": metadata, **of_all}
            return LayerNorm(self.head_dim, **options) if normalize_qk else None

        self.query_ln, self.key_ln = data(norm(query_ln_scale_metadata)), data(norm(key_ln_scale_metadata))
        self.out = LinearGeneral(
            (num_heads, self.head_dim),
            self.out_features,
            axis=(-2, -1),
            kernel_init=out_kernel_init or kernel_init,
            bias_init=out_bias_init or bias_init,
            promote_dtype=out_promote_dtype,
            dot_general=out_dot_general,
            dot_general_cls=out_dot_general_cls,
            kernel_metadata=out_kernel_metadata or kernel_metadata,
            bias_metadata=out_bias_metadata or bias_metadata,
            **of_maps,
        )
        self.rngs = data(rngs.dropout.fork() if keep_rngs and dropout_rate > 0 else None)
        self.cached_key: Cache[Any] | None = data(None)
        self.cached_value: Cache[Any] | None = data(None)
        self.cache_index: Cache[Any] | None = data(None)

    @names_its_place
    def _check_heads(self) -> None:
        if self.qkv_features % self.num_heads:
            raise LayerInputError(
                f"qkv_features={self.qkv_features} cannot be divided evenly among num_heads={self.num_heads} heads."
            )
        if self.num_heads % self.num_kv_heads:
            raise LayerInputError(
                f"num_heads={self.num_heads} cannot be divided evenly among num_kv_heads={self.num_kv_heads} key heads."
            )

    @names_its_place
    def __call__(
        self,
        inputs_q: jax.Array,
        inputs_k: jax.Array | None = None,
        inputs_v: jax.Array | None = None,
        *,
        mask: jax.Array | None = None,
        deterministic: bool | None = None,
        rngs: Rngs | RngStream | jax.Array | None = None,
        sow_weights: bool = False,
        decode: bool | None = None,
        is_causal: bool = False,
        out_sharding: OutSharding | None = None,
        qkv_sharding: OutSharding | None = None,
        input_positions: jax.Array | None = None,
    ) -> jax.Array:
        """Attends.

        Args:
            inputs_q: `(batch..., queries, in_features)`.
            inputs_k: `(batch..., keys, in_kv_features)`; None takes `inputs_q`.
            inputs_v: As `inputs_k`; None takes `inputs_k`.
            mask: Broadcast to `(batch..., heads, queries, keys)`; positions that are False get no weight.
            deterministic: Drop nothing; overrides the layer's own setting.
            rngs: Random streams for dropout, in place of the layer's own stream.
            sow_weights: Sow the weights as `attention_weights`, an `nnx.Intermediate`.
            decode: Write one position into the cache; overrides the layer's own setting.
            is_causal: Mask the positions after the query; not needed when decoding.
            out_sharding: Sharding of the result, under explicit sharding.
            qkv_sharding: Sharding of queries, keys and values, under explicit sharding.
            input_positions: `(batch..., length)`, passed on to an `attention_fn` that takes them, such as
                `nnx.dot_product_attention_with_rope`.

        Returns:
            `(batch..., queries, out_features)`.

        Raises:
            ValueError: `decode` or `deterministic` is not set, or there is no cache.
        """
        if inputs_k is None and inputs_v is not None:
            raise LayerInputError(
                "`inputs_v` is given but `inputs_k` is not. Give `inputs_k`; alone it serves as both keys and values."
            )
        # One input gives self-attention, two give cross-attention, as in Flax.
        keyed = inputs_q if inputs_k is None else inputs_k
        inputs = {"query": inputs_q, "key": keyed, "value": keyed if inputs_v is None else inputs_v}
        for part, x in inputs.items():
            size = self.in_features if part == "query" else self.in_kv_features
            expect_size(x, axis=-1, size=size, argument=f"inputs_{part[0]}", meaning="features")
        query, key, value = (getattr(self, part)(x, out_sharding=qkv_sharding) for part, x in inputs.items())
        if self.query_ln is not None and self.key_ln is not None:
            query, key = self.query_ln(query), self.key_ln(key)
        decoding = chosen(self, "decode", decode, self.decode)
        if decoding:
            key, value, mask = self._decode(query, key, value, mask)
        dropping, rng = self._dropout(deterministic, rngs)
        # The cache has its own mask. Flax 0.12.8 masks all but the first of its positions, too.
        causal = is_causal and not (decoding and follows(0, 12, 12))
        heads = self.attention_fn(
            query,
            key,
            value,
            mask=mask,
            dropout_rng=rng,
            dropout_rate=self.dropout_rate,
            broadcast_dropout=self.broadcast_dropout,
            deterministic=not dropping,
            dtype=self.dtype,
            precision=self.precision,
            module=self if sow_weights else None,
            **({"is_causal": True} if causal else {}),
            **({} if input_positions is None else {"input_positions": input_positions}),
        )
        return self.out(heads, out_sharding=out_sharding)

    def _dropout(
        self, deterministic: bool | None, rngs: Rngs | RngStream | jax.Array | None
    ) -> tuple[bool, jax.Array | None]:
        if self.dropout_rate == 0.0 or chosen(self, "deterministic", deterministic, self.deterministic):
            return False, None
        source = rngs if rngs is not None else self.rngs
        if source is None:
            raise LayerInputError(
                f"dropping with dropout_rate={self.dropout_rate} draws random numbers, but a layer made with "
                "keep_rngs=False has no stream to draw from: pass `rngs` or deterministic=True to the call."
            )
        return True, next_key(source, "dropout")

    def _decode(
        self, query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        if self.cached_key is None or self.cached_value is None or self.cache_index is None:
            raise LayerInputError("decode=True needs a cache, but this layer has none: call `init_cache` first.")
        cached_key, cached_value, index, mask = ops.decode_step(
            query,
            key,
            value,
            cached_key=self.cached_key[...],
            cached_value=self.cached_value[...],
            index=self.cache_index[...],
            mask=mask,
        )
        self.cached_key.set_value(cached_key)
        self.cached_value.set_value(cached_value)
        self.cache_index.set_value(index)
        return cached_key, cached_value, mask

    def init_cache(self, input_shape: tuple[int, ...], dtype: Dtype = jnp.float32) -> None:
        """Makes an empty cache; needed before decoding.

        Args:
            input_shape: `(batch..., length, in_features)` of all positions together.
            dtype: The dtype of the cache.

        Example:
            >>> from sonde import nnx
            >>> import jax.numpy as jnp
            >>> layer = nnx.MultiHeadAttention(2, 4, decode=True, rngs=nnx.Rngs(0))
            >>> layer.init_cache((3, 10, 4))
            >>> layer(jnp.ones((3, 1, 4))).shape, int(layer.cache_index)
            ((3, 1, 4), 1)
        """
        shape = (*input_shape[:-1], self.num_kv_heads, self.head_dim)
        self.cached_key, self.cached_value = Cache(jnp.zeros(shape, dtype)), Cache(jnp.zeros(shape, dtype))
        self.cache_index = Cache(jnp.zeros((), jnp.int32))

    # `nnx.view_info` prints what the docstring says of the arguments, and its output is that of Flax.
    def set_view(
        self,
        deterministic: bool | None = None,
        decode: bool | None = None,
        batch_size: int | Shape | None = None,
        max_length: int | None = None,
    ) -> None:
        """Sets what `nnx.view` may set.

        Args:
            deterministic: if True, the module is set to deterministic mode.
            decode: if True, the module is set to decode mode.
            batch_size: the batch size to use for the cache.
            max_length: the max length to use for the cache.
        """
        for setting, value in {"deterministic": deterministic, "decode": decode}.items():
            if value is not None:
                setattr(self, setting, value)
        if (batch_size is None) != (max_length is None):
            raise LayerInputError(
                f"`batch_size` and `max_length` must both be given for a cache, got {batch_size} and {max_length}.",
                place=type(self).__name__,
            )
        if batch_size is not None and max_length is not None:
            batch = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
            self.init_cache((*batch, max_length, self.in_features))
