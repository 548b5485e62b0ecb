"""A small transformer written twice, and mistakes in the second: each on lines that carry its name as a comment."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WIDTH, HEADS, KEY_HEADS, LAYERS, LENGTH, TOKENS = 16, 4, 2, 2, 5, 11
SIZE = WIDTH // HEADS


def weights() -> dict[str, Any]:
    """Random weights for both."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=shape) / np.sqrt(shape[0] if len(shape) > 1 else 9), jnp.float32)

    keys = KEY_HEADS * SIZE
    layers = [
        {
            "q": normal(WIDTH, WIDTH),
            "kv": normal(WIDTH, 2 * keys),
            "o": normal(WIDTH, WIDTH),
            "ob": normal(WIDTH),
            "gate": normal(WIDTH, 3 * WIDTH),
            "up": normal(WIDTH, 3 * WIDTH),
            "down": normal(3 * WIDTH, WIDTH),
            "db": normal(WIDTH),
            "n1": 1 + normal(WIDTH),
            "n2": 1 + normal(WIDTH),
        }
        for _ in range(LAYERS)
    ]
    return {"embed": normal(TOKENS, WIDTH), "head": normal(TOKENS, WIDTH), "norm": 1 + normal(WIDTH), "layers": layers}


W = weights()
IDS = jnp.asarray(np.random.default_rng(1).integers(0, TOKENS, LENGTH))


def turned(x: Any, positions: Any) -> Any:
    """Rotary positions, halves."""
    angle = positions[:, None] / 100.0 ** (jnp.arange(0, SIZE, 2) / SIZE)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    a, b = jnp.split(x, 2, -1)  # rotary
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)  # rotary


def original(ids: Any) -> Any:
    """The first program."""
    positions = jnp.arange(LENGTH, dtype=jnp.float32)
    x = W["embed"][ids] * WIDTH**0.5  # embedding_scale
    for w in W["layers"]:
        h = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w["n1"]  # eps # post_norm # layer_norm
        q = jnp.einsum("td,dhe->hte", h, w["q"].reshape(WIDTH, HEADS, SIZE))  # heads
        kv = jnp.einsum("td,dchs->chts", h, w["kv"].reshape(WIDTH, 2, KEY_HEADS, SIZE))
        q, k = turned(q, positions), turned(kv[0], positions)  # positions
        k, v = (jnp.repeat(y, HEADS // KEY_HEADS, 0) for y in (k, kv[1]))  # key_heads
        s = jnp.einsum("hqe,hke->hqk", q, k) / SIZE**0.5  # scale
        s = jnp.where(jnp.tri(LENGTH, dtype=bool), s, -jnp.inf)  # mask
        p = jax.nn.softmax(s, -1)  # softmax_axis
        a = jnp.einsum("hqk,hke->qhe", p, v).reshape(LENGTH, WIDTH)
        x = x + (a @ w["o"] + w["ob"])  # transposed # no_residual # post_norm
        h = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w["n2"]  # missing_weight
        m = jax.nn.gelu(h @ w["gate"], approximate=False) * (h @ w["up"])  # gelu # silu # swapped
        x = x + m @ w["down"] + w["db"]  # bias # surplus
    x = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * W["norm"]  # final_norm
    return x @ W["head"].T  # tied


def ported(ids: Any, wrong: str = "", earlier: str = "") -> Any:
    """The second program, written in another way, with a mistake; if wanted, with another one in the layer before."""

    def norm(x: Any, weight: Any, eps: float = 1e-5, bad: str = "") -> Any:
        if bad == "layer_norm":
            x = x - jnp.mean(x, -1, keepdims=True)  # layer_norm
        scale = jnp.sqrt(jnp.mean(jnp.square(x), -1) + eps)  # eps
        normed = x / scale[:, None]
        return normed if bad == "missing_weight" else weight * normed  # missing_weight

    def rotary(x: Any, start: int = 0, bad: str = "") -> Any:
        angle = jnp.outer(jnp.arange(start, start + LENGTH), 100.0 ** (-jnp.arange(0, SIZE, 2) / SIZE))  # positions
        if bad == "rotary":
            a, b = x[..., ::2], x[..., 1::2]  # rotary
            parts = a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)  # rotary
            return jnp.stack(parts, -1).reshape(x.shape)
        other = jnp.concatenate([-x[..., SIZE // 2 :], x[..., : SIZE // 2]], -1)  # heads
        cos, sin = (jnp.concatenate([f(angle)] * 2, -1) for f in (jnp.cos, jnp.sin))  # positions
        return x * cos + other * sin  # positions

    x = jnp.take(W["embed"], ids, 0)
    if wrong != "embedding_scale":
        x = jnp.sqrt(WIDTH) * x
    for i, w in enumerate(W["layers"]):
        bad = wrong if i == 1 else earlier
        h = (
            x
            if bad == "post_norm"
            else norm(x, w["n1"], 1e-3 if bad == "eps" else 1e-5, bad if bad == "layer_norm" else "")
        )
        q, kv = h @ w["q"], h @ w["kv"]  # post_norm
        k, v = jnp.split(kv, 2, -1)
        q = q.reshape((HEADS, LENGTH, SIZE)) if bad == "heads" else q.reshape(LENGTH, HEADS, SIZE).swapaxes(0, 1)
        k, v = (y.reshape(LENGTH, KEY_HEADS, SIZE).swapaxes(0, 1) for y in (k, v))
        q, k = rotary(q, int(bad == "positions"), bad), rotary(k, 0, bad)  # heads
        copies = jnp.tile if bad == "key_heads" else partial(jnp.repeat, axis=0)
        times: Any = (2, 1, 1) if bad == "key_heads" else 2
        k, v = copies(k, times), copies(v, times)
        s = q @ k.swapaxes(1, 2)  # key_heads # rotary
        s = s if bad == "scale" else s * SIZE**-0.5
        keep = jnp.arange(LENGTH)[:, None] + (bad == "mask") >= jnp.arange(LENGTH)
        s = jnp.where(keep, s, -1e30 if bad == "" else -jnp.inf)  # mask # scale
        e = jnp.exp(s - s.max(-1, keepdims=True))
        p = jax.nn.softmax(s, -2) if bad == "softmax_axis" else e / e.sum(-1, keepdims=True)  # softmax_axis
        a = (p @ v).swapaxes(0, 1).reshape(LENGTH, WIDTH)
        a = a @ (w["o"].T if bad == "transposed" else w["o"]) + w["ob"]  # transposed
        x = a if bad == "no_residual" else x + a
        x = norm(x, w["n1"]) if bad == "post_norm" else x
        h = norm(x, w["n2"], 1e-5, bad if bad == "missing_weight" else "")  # no_residual
        gate, up = h @ w["gate"], h @ w["up"]  # missing_weight
        gate, up = (up, gate) if bad == "swapped" else (gate, up)
        act = jax.nn.silu if bad == "silu" else partial(jax.nn.gelu, approximate=bad == "gelu")
        m = act(gate) * up @ w["down"]  # gelu # silu # swapped
        m = m if bad == "bias" else m + w["db"]
        x = x + m * (1.25 if bad == "surplus" else 1.0)  # bias # surplus
    x = x if wrong == "final_norm" else norm(x, W["norm"])
    return x @ (W["embed"] if wrong == "tied" else W["head"]).T  # tied # final_norm


def lines_of(mistake: str) -> set[str]:
    """The lines of both programs that carry the name of a mistake, as `file:line`."""
    text = Path(__file__).read_text(encoding="utf-8").splitlines()
    return {f"{__file__}:{i}" for i, line in enumerate(text, 1) if mistake in line.partition("  # ")[2].split(" # ")}


# Text that the named cause must contain; None where no single change mends it, or several texts are right.
MISTAKES: dict[str, str | None] = {
    "eps": "with eps=1e-05 in place of 0.001",
    "scale": "which the second lacks",
    "mask": "with the causal mask of diagonal 0 in place of 1",
    "transposed": "with the weight [16, 16] transposed",
    "gelu": "with the exact gelu in place of the tanh approximation of gelu",
    "silu": "with the exact gelu in place of silu",
    "bias": "which the second lacks",
    "surplus": None,
    "tied": None,
    "final_norm": None,
    "embedding_scale": "which the second lacks",
    "missing_weight": None,
    "layer_norm": None,
    "positions": None,
    "rotary": None,
    "heads": None,
    "key_heads": None,
    "softmax_axis": None,
    "no_residual": None,
    "swapped": None,
    "post_norm": None,
}
