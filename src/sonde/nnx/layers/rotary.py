"""Rotary position embeddings: queries and keys are rotated by an angle that grows with their position.

Features `i` and `i + half` of a head form a pair, which position `p` rotates by `p * theta ** (-2 i / width)`. The
product of a query and a key then depends on how far apart they are.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sonde.errors import LayerInputError
from sonde.nnx.layers.attention import dot_product_attention
from sonde.nnx.layers.place import names_its_place
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.module import Module
from sonde.nnx.variable.variable import Variable
from sonde.ops.rotary import Rotary, rotary_tables, rotate


class RoPE(Module):
    """Rotates vectors by their positions.

    Args:
        theta: The base of the frequencies; the larger, the slower the slowest pair rotates.
        embedding_size: How many features a vector has, an even number. With `max_seq_len`, the tables of cosines and
            sines are made once and kept in Variables.
        max_seq_len: How many positions those tables have.

    Example:
        >>> import functools
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> rope = nnx.RoPE(embedding_size=4, max_seq_len=16)
        >>> attention_fn = functools.partial(nnx.dot_product_attention_with_rope, rope=rope)
        >>> layer = nnx.MultiHeadAttention(2, 8, attention_fn=attention_fn, decode=False, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 5, 8))).shape
        (1, 5, 8)
    """

    def __init__(self, theta: float = 10000.0, embedding_size: int | None = None, max_seq_len: int | None = None):
        self.theta = theta
        self._check_sizes(embedding_size, max_seq_len)
        self.cached_sin: Variable[Any] | None = data(None)
        self.cached_cos: Variable[Any] | None = data(None)
        if embedding_size is not None and max_seq_len is not None:
            cos, sin = rotary_tables(jnp.arange(max_seq_len), Rotary(embedding_size, theta=theta))
            self.cached_sin, self.cached_cos = Variable(sin), Variable(cos)

    @names_its_place
    def _check_sizes(self, embedding_size: int | None, max_seq_len: int | None) -> None:
        if (embedding_size is None) != (max_seq_len is None):
            raise LayerInputError("`embedding_size` and `max_seq_len` must be given together, or not at all.")
        if embedding_size is not None and (embedding_size <= 0 or embedding_size % 2):
            raise LayerInputError(f"`embedding_size` must be positive and even, got {embedding_size}.")
        if max_seq_len is not None and max_seq_len <= 0:
            raise LayerInputError(f"`max_seq_len` must be positive, got {max_seq_len}.")

    @names_its_place
    def __call__(self, x: jax.Array, input_positions: jax.Array | None = None) -> jax.Array:
        """Rotates every vector of `(batch..., length, embedding_size)` by its position, in float32 at least.

        `input_positions` is `(batch..., length)`, with at most as many batch axes as `x`; None counts from zero.
        """
        return self.turn(x[..., None, :], input_positions)[..., 0, :]

    def turn(self, x: jax.Array, input_positions: jax.Array | None = None) -> jax.Array:
        """Rotates heads: `x` is `(batch..., length, heads, embedding_size)`."""
        length, width = x.shape[-3], x.shape[-1]
        if self.cached_cos is not None and self.cached_sin is not None and input_positions is None:
            cos, sin = self.cached_cos[...][:length], self.cached_sin[...][:length]
            if cos.shape[0] < length or 2 * cos.shape[-1] != width:
                raise LayerInputError(
                    f"the tables were made for {cos.shape[0]} positions of {2 * cos.shape[-1]} features, but the input "
                    f"has {length} positions of {width} features."
                )
        else:
            if width % 2:
                raise LayerInputError(f"features are rotated in pairs, but the input has {width} of them.")
            positions = jnp.arange(length) if input_positions is None else input_positions
            cos, sin = rotary_tables(positions, Rotary(width, theta=self.theta))
        return rotate(x.astype(jnp.promote_types(x.dtype, jnp.float32)), cos, sin)


def dot_product_attention_with_rope(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    rope: RoPE,
    input_positions: jax.Array | None = None,
    **kwargs: Any,
) -> jax.Array:
    """`nnx.dot_product_attention` of queries and keys that `rope` has rotated.

    Args:
        query: `(batch..., queries, heads, depth)`.
        key: `(batch..., keys, heads, depth)`.
        value: `(batch..., keys, heads, depth)`.
        rope: Rotates queries and keys.
        input_positions: The positions of queries and keys; None counts both from zero.
        **kwargs: What `nnx.dot_product_attention` takes.

    Returns:
        `(batch..., queries, heads, depth)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from sonde import nnx
        >>> q = jnp.ones((2, 5, 4, 8))
        >>> nnx.dot_product_attention_with_rope(q, q, q, rope=nnx.RoPE()).shape
        (2, 5, 4, 8)
    """
    query, key = rope.turn(query, input_positions), rope.turn(key, input_positions)
    return dot_product_attention(query, key, value, **kwargs)
