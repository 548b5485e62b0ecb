"""A Llama in plain JAX, written by hand: the base that `sonde.models` is measured against.

Functions of a dict of arrays, with the arithmetic of `sonde.models` and no sites. The weights are those of a model of
`sonde.models`, the same arrays, so that both give the same numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sonde import nnx

Params = dict[str, Any]


def params_of(model: Any) -> Params:
    """The weights of a model; layers as a list of dicts, or stacked as the model has them."""

    def block(b: Any) -> Params:
        kernels = {name: getattr(b.attn, name).kernel[...] for name in "qkvo"}
        kernels |= {name: getattr(b.mlp, name).kernel[...] for name in ("up", "gate", "down")}
        return {**kernels, "norm1": b.norm1.scale[...], "norm2": b.norm2.scale[...]}

    blocks = [block(b) for b in model.blocks] if isinstance(model.blocks, nnx.List) else block(model.blocks)
    head = model.embed.embedding[...].T if model.head is None else model.head.kernel[...]
    return {"embed": model.embed.embedding[...], "blocks": blocks, "norm": model.norm.scale[...], "head": head}


def decoder(config: Any) -> Any:
    """Functions: `forward(params, tokens)`, which may also return the residual stream after every layer;
    `start(params, tokens, slots)`; `step(params, state)`; `generate(params, tokens, steps)`.
    """
    heads, key_heads, depth = config.heads, config.key_heads, config.depth
    theta, epsilon = config.kinds[0].rotary.theta, config.epsilon
    frequencies = 1.0 / theta ** (jnp.arange(0, depth, 2, dtype=jnp.float32) / depth)

    def norm(x, scale):
        wide = x.astype(jnp.float32)
        return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + epsilon) * scale).astype(x.dtype)

    def rotate(x, cos, sin):
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)

    def block(p, x, cos, sin, mask, put):
        batch, length, _ = x.shape
        h = norm(x, p["norm1"])
        q = rotate((h @ p["q"]).reshape(batch, length, heads, depth), cos, sin)
        k = rotate((h @ p["k"]).reshape(batch, length, key_heads, depth), cos, sin)
        v = (h @ p["v"]).reshape(batch, length, key_heads, depth)
        k, v, kept = put(k, v)
        q = q.reshape(batch, length, key_heads, heads // key_heads, depth)
        scores = jnp.einsum("bqkgd,bskd->bkgqs", q, k, preferred_element_type=jnp.float32) * depth**-0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e38)).astype(x.dtype)
        x = x + jnp.einsum("bkgqs,bskd->bqkgd", weights, v).reshape(batch, length, -1) @ p["o"]
        h = norm(x, p["norm2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"], kept

    def run(params, tokens, cache, filled, seen):
        length = tokens.shape[1]
        angles = (filled + jnp.arange(length, dtype=jnp.float32))[:, None] * frequencies
        cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
        slots = length if cache is None else cache[0][0].shape[-3]
        mask = (filled + jnp.arange(length))[:, None] >= jnp.arange(slots)
        x = params["embed"][tokens]
        if not isinstance(params["blocks"], list):
            return _scanned(params, x, cache, filled, cos, sin, mask, block, seen)
        new = []
        for i, p in enumerate(params["blocks"]):

            def put(k, v, i=i):
                if cache is None:
                    return k, v, None
                both = [lax.dynamic_update_slice(c[i], n, (0, filled, 0, 0)) for c, n in zip(cache, (k, v))]
                return *both, both

            x, kept = block(p, x, cos, sin, mask, put)
            new.append(kept)
            if seen is not None:
                seen.append(x)
        return x, None if cache is None else ([n[0] for n in new], [n[1] for n in new])

    def logits(params, x):
        return (norm(x, params["norm"]) @ params["head"]).astype(jnp.float32)

    def forward(params, tokens, seen=False):
        residuals = [] if seen else None
        out = logits(params, run(params, tokens, None, jnp.int32(0), residuals)[0])
        return (out, residuals) if seen else out

    def start(params, tokens, slots):
        shape = (tokens.shape[0], slots, key_heads, depth)
        dtype = params["embed"].dtype
        if isinstance(params["blocks"], list):
            cache: Any = tuple([jnp.zeros(shape, dtype) for _ in params["blocks"]] for _ in range(2))
        else:
            cache = tuple(jnp.zeros((config.layers, *shape), dtype) for _ in range(2))
        x, cache = run(params, tokens, cache, jnp.int32(0), None)
        return logits(params, x[:, -1]).argmax(-1).astype(jnp.int32), cache, jnp.int32(tokens.shape[1])

    def step(params, state):
        tokens, cache, filled = state
        x, cache = run(params, tokens[:, None], cache, filled, None)
        return logits(params, x[:, -1]).argmax(-1).astype(jnp.int32), cache, filled + 1

    def generate(params, tokens, steps):
        first = start(params, tokens, tokens.shape[1] + steps - 1)

        def body(state, _):
            new = step(params, state)
            return new, new[0]

        _, later = lax.scan(body, first, length=steps - 1)
        return jnp.concatenate([first[0][None], later]).T

    return forward, start, step, generate


def _scanned(params, x, cache, filled, cos, sin, mask, block, seen):
    def body(carry, given):
        x, cache = carry
        p, layer = given

        def put(k, v):
            if cache is None:
                return k, v, None
            at = (layer, 0, filled, 0, 0)
            both = [lax.dynamic_update_slice(c, n[None], at) for c, n in zip(cache, (k, v))]
            return *(lax.dynamic_index_in_dim(c, layer, keepdims=False) for c in both), tuple(both)

        new = block(p, x, cos, sin, mask, put)
        return new, None if seen is None else new[0]

    layers = params["blocks"]["q"].shape[0]
    (x, cache), residuals = lax.scan(body, (x, cache), (params["blocks"], jnp.arange(layers)))
    if seen is not None:
        seen.append(residuals)
    return x, cache
