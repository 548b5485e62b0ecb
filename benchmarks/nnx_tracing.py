"""Tracing a model of Modules through `nnx.capture`, against tracing the same model without its `sow`s."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from measure import Row, interleaved, main
from sonde import nnx

WIDTH, HEADS = 32, 4


class Block(nnx.Module):
    def __init__(self, sows: bool, rngs: nnx.Rngs) -> None:
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, rngs=rngs, decode=False)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.sows = sows

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x))
        hidden = jax.nn.gelu(self.up(self.norm2(x)))
        x = x + self.down(hidden)
        if self.sows:
            self.sow(nnx.Intermediate, "hidden", hidden)
            self.sow(nnx.Intermediate, "resid", x)
        return x


class Model(nnx.Module):
    def __init__(self, sows: bool, blocks: int = 12) -> None:
        rngs = nnx.Rngs(0)
        self.blocks = nnx.List([Block(sows, rngs) for _ in range(blocks)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return x


class Remat(Model):
    def __call__(self, x: jax.Array) -> jax.Array:
        run = jax.checkpoint(lambda block, x: block(x))  # traced once for all blocks
        for block in self.blocks:
            x = run(block, x)
        return x


def measure() -> list[Row]:
    return [
        compare("a model", Model, lambda: lambda m, x: m(x)),
        compare("a model under nnx.jit", Model, lambda: nnx.jit(lambda m, x: m(x))),
        compare("a model in value_and_grad", Model, lambda: nnx.value_and_grad(lambda m, x: jnp.sum(m(x)))),
        # Without a capture all blocks share one trace, with a capture each has its own: no bound.
        compare("blocks under one jax.checkpoint", Remat, lambda: lambda m, x: m(x), bound=None),
    ]


def compare(what: str, kind: Any, fresh: Callable[[], Any], *, bound: float | None = 1.2) -> Row:
    """Traces the function that `fresh` makes, a new one every time."""
    silent, loud = kind(False), kind(True)
    x = jnp.ones((2, 8, WIDTH))

    def plain() -> None:
        jax.make_jaxpr(lambda: jax.tree.leaves(fresh()(silent, x)))()

    def captured() -> None:
        jax.make_jaxpr(lambda: jax.tree.leaves(nnx.capture(fresh(), nnx.Intermediate)(loud, x)))()

    times = interleaved({"plain": plain, "capture": captured}, seconds=7, clock=time.thread_time)
    return times.row("capture", f"tracing nnx.capture of {what} against tracing it", bound)


if __name__ == "__main__":
    main(measure)
