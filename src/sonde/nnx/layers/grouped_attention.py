"""Attention as in current language models: grouped keys, rotary embeddings, windows, caps, and a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from sonde import ops
from sonde.core import sow
from sonde.nnx.layers.linear import Linear
from sonde.nnx.layers.parameters import value_of
from sonde.nnx.layers.place import names_its_place
from sonde.nnx.modules.attribute_status import data
from sonde.nnx.modules.module import Module
from sonde.nnx.rng.rngs import Rngs
from sonde.ops.dtypes import Dtype
from sonde.ops.grouped_attention import Implementation


class KeyValues(NamedTuple):
    """Keys and values of the positions seen so far, `(batch, length, key heads, depth)` each."""

    keys: jax.Array
    values: jax.Array


class GroupedAttention(Module):
    """Attention that may have fewer key heads than query heads.

    Sites: `q`, `k`, `v` (as projected), `q_rotated`, `k_rotated` (as compared), `scores`, `weights`, `heads`, `out`;
    and `results`, what each head adds to the output, if `per_head`.

    Args:
        features: Number of input and output features.
        heads: How many heads there are.
        key_heads: How many heads keys and values have; as many as `heads` if None.
        depth: How many features a head has; `features / heads` if None.
        use_bias: Whether the projections to queries, keys and values have biases.
        use_out_bias: Whether the output projection has a bias; the same as `use_bias` if None.
        norm: Called as `norm(depth, rngs=rngs)`, once to make a norm for the queries of a head, once for the keys.
        scale: What scores are multiplied by; 1/√depth if None.
        cap: A soft limit for the scores.
        implementation: `"cudnn"` or `"xla"`: uses that implementation of `jax.nn.dot_product_attention`.
        per_head: Whether to compute each head's contribution to the output separately, so that `results` is a site.
        dtype: The dtype to compute in; None derives it from inputs and parameters.
        param_dtype: The dtype that parameters are stored in.
        rngs: Random streams for the initial parameters.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layer = nnx.GroupedAttention(16, heads=4, key_heads=2, rngs=nnx.Rngs(0))
        >>> layer(jnp.ones((1, 5, 16))).shape
        (1, 5, 16)
    """

    def __init__(
        self,
        features: int,
        *,
        heads: int,
        key_heads: int | None = None,
        depth: int | None = None,
        use_bias: bool = False,
        use_out_bias: bool | None = None,
        norm: Callable[..., Module] | None = None,
        scale: float | None = None,
        cap: float | None = None,
        implementation: Implementation | None = None,
        per_head: bool = False,
        dtype: Dtype | None = None,
        param_dtype: Dtype = jnp.float32,
        rngs: Rngs,
    ):
        self.heads = heads
        self.key_heads = key_heads or heads
        self.depth = depth or features // heads
        self.scale = scale
        self.cap = cap
        self.implementation = implementation
        self.per_head = per_head
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.q = Linear(features, heads * self.depth, use_bias=use_bias, **options)
        self.k = Linear(features, self.key_heads * self.depth, use_bias=use_bias, **options)
        self.v = Linear(features, self.key_heads * self.depth, use_bias=use_bias, **options)
        self.q_norm: Any = data(norm(self.depth, rngs=rngs) if norm else None)
        self.k_norm: Any = data(norm(self.depth, rngs=rngs) if norm else None)
        use_out_bias = use_bias if use_out_bias is None else use_out_bias
        self.o = Linear(heads * self.depth, features, use_bias=use_out_bias, **options)

    @names_its_place
    def __call__(
        self,
        x: jax.Array | tuple[jax.Array, ...],
        *,
        mask: jax.Array | None = None,
        rotation: tuple[jax.Array, jax.Array] | None = None,
        cache: Callable[[KeyValues], KeyValues] | None = None,
    ) -> jax.Array:
        """Attends.

        Args:
            x: `(batch, length, features)`; or three arrays, one for queries, keys and values each, with an axis for
                their heads: `(batch, length, heads, features)`.
            mask: Boolean, broadcast to `(batch, length, keys)`: which keys each query may attend to.
            rotation: Cosines and sines for the positions, from `ops.rotary_tables`.
            cache: A function that takes the new keys and values and returns those of all positions so far.

        Returns:
            `(batch, length, features)`.
        """
        of_q, of_k, of_v = x if isinstance(x, tuple) else (x, x, x)
        batch, length = of_q.shape[:2]
        q = sow(self._projected(self.q, of_q, self.heads), "q")
        k = sow(self._projected(self.k, of_k, self.key_heads), "k")
        v = sow(self._projected(self.v, of_v, self.key_heads), "v")
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = sow(ops.rotate(q, *rotation), "q_rotated"), sow(ops.rotate(k, *rotation), "k_rotated")
        if cache is not None:
            k, v = cache(KeyValues(k, v))
        options: dict[str, Any] = {"scale": self.scale, "cap": self.cap, "implementation": self.implementation}
        # A cache may hold keys and values in another dtype than the queries.
        heads = ops.grouped_attention(q, k.astype(q.dtype), v.astype(q.dtype), mask=mask, **options)
        if not self.per_head:
            return sow(self.o(heads.reshape(batch, length, -1)), "out")
        results = sow(ops.head_results(heads, self.o.kernel[...]), "results")
        bias = value_of(self.o.bias)
        return sow(results.sum(-2) if bias is None else results.sum(-2) + bias, "out")

    def _projected(self, map_: Linear, x: jax.Array, heads: int) -> jax.Array:
        """Queries, keys or values, `(batch, length, heads, depth)`."""
        if x.ndim == 3:
            return map_(x).reshape(*x.shape[:2], heads, self.depth)
        kernel = map_.kernel[...].reshape(-1, heads, self.depth).astype(x.dtype)
        projected = jnp.einsum("blhf,fhd->blhd", x, kernel)
        bias = value_of(map_.bias)
        return projected if bias is None else projected + bias.reshape(heads, self.depth).astype(x.dtype)
