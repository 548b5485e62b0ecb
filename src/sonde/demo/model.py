"""The model of the demo: two layers of attention and nothing else, with a site for what every head writes.

Attention only, as in the literature on induction heads: the output is a sum of what the heads write, so it can be
attributed to heads. Positions enter as a learned number for every distance, per head; tokens and positions are never
mixed in the residual stream.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

import sonde
from sonde import nnx

LAYERS, HEADS, WIDTH, HEAD_WIDTH = 2, 4, 64, 16


class Attention(nnx.Module):
    """Causal attention whose sites are `scores`, `weights`, and `heads/0`, `heads/1`, ...: what each head writes.

    Attributes:
        score_dtype: The dtype in which scores are kept. The demo's defect is that it becomes float16.
    """

    def __init__(self, length: int, *, rngs: nnx.Rngs) -> None:
        shape = (WIDTH, HEADS, HEAD_WIDTH)
        init = nnx.initializers.lecun_normal(in_axis=0, out_axis=(1, 2))
        self.query = nnx.Param(init(rngs.params(), shape))
        self.key = nnx.Param(init(rngs.params(), shape))
        self.value = nnx.Param(init(rngs.params(), shape))
        self.out = nnx.Param(nnx.initializers.lecun_normal(in_axis=(0, 1))(rngs.params(), (HEADS, HEAD_WIDTH, WIDTH)))
        self.distance = nnx.Param(jnp.zeros((HEADS, length)))
        self.score_dtype = jnp.float32

    def __call__(self, x: jax.Array) -> jax.Array:
        """What each head adds to the stream: batch, head, position, width."""
        query, key, value = (jnp.einsum("btd,dhk->bhtk", x, w[...]) for w in (self.query, self.key, self.value))
        back = jnp.arange(x.shape[1])[:, None] - jnp.arange(x.shape[1])
        scores = jnp.einsum("bhqk,bhsk->bhqs", query, key) / HEAD_WIDTH**0.5
        scores = sonde.sow(scores.astype(self.score_dtype), "scores").astype(jnp.float32)
        scores = scores + self.distance[...][:, jnp.maximum(back, 0)]
        weights = sonde.sow(jax.nn.softmax(jnp.where(back >= 0, scores, -1e9)), "weights")
        written = jnp.einsum("bhqs,bhsk,hkd->bhqd", weights, value, self.out[...])
        return jnp.stack([sonde.sow(written[:, h], f"heads/{h}") for h in range(HEADS)], axis=1)


class AttentionOnly(nnx.Module):
    """From tokens to the logits of the next token."""

    def __init__(self, tokens: int, length: int, *, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(tokens, WIDTH, rngs=rngs)
        self.layers = nnx.List([Attention(length, rngs=rngs) for _ in range(LAYERS)])
        self.unembedding = nnx.Linear(WIDTH, tokens, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The logits, and what every head of every layer wrote: layer, batch, head, position, width."""
        x = sonde.sow(self.embedding(tokens), "embedded")
        written = []
        for i, layer in enumerate(self.layers):
            written.append(layer(x))
            x = sonde.sow(x + written[-1].sum(axis=1), f"stream/{i}")
        return sonde.sow(self.unembedding(x), "logits"), jnp.stack(written)
