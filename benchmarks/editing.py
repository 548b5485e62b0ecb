"""Edits against the same program written by hand with the array of the edit as an argument.

Called again with other arrays, an edit must compile nothing and cost hardly more than the call.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp

import sonde
from measure import Row, interleaved, main
from sonde import models
from sonde.tools import steer

LAYERS, WIDTH, TOKENS = 12, 256, 64


def network(weights: Any, x: jax.Array, mark: Any = sonde.sow) -> jax.Array:
    for i, w in enumerate(weights):
        x = mark(x + jnp.tanh(x @ w), f"blocks/{i}/out")
    return x


def edited_program() -> list[Row]:
    weights = [jax.random.normal(jax.random.key(i), (WIDTH, WIDTH)) / 16 for i in range(LAYERS)]
    x = jnp.ones((TOKENS, WIDTH))
    directions = itertools.cycle(jax.random.normal(jax.random.key(0), (8, WIDTH)))
    jitted = jax.jit(network)

    @jax.jit
    def by_hand(weights: Any, x: jax.Array, direction: jax.Array) -> jax.Array:
        return network(weights, x, lambda h, name: h + direction if name == "blocks/5/out" else h)

    def edited() -> jax.Array:
        direction = next(directions)
        return sonde.edit(jitted, {"blocks/5/out": lambda h: h + direction})(weights, x)

    times = interleaved({"by hand": lambda: by_hand(weights, x, next(directions)), "edit": edited}, seconds=6)
    return [times.row("edit", "edit(jit(f)), made anew with another array for every call", 1.1)]


def steered_generation() -> list[Row]:
    config = {
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 12, "hidden_size": 384, "num_attention_heads": 6,
        "intermediate_size": 1024, "vocab_size": 4096,
    }  # fmt: skip
    model, prompt = models.from_config(config), [[1, 2, 3, 4]]
    direction = jnp.ones(384) * 0.1
    steered = steer(models.generate, {"blocks/3/out": direction})
    times = interleaved(
        {
            "plain": lambda: models.generate(model, prompt, max_new_tokens=32).tokens,
            "steered": lambda: steered(model, prompt, max_new_tokens=32).tokens,
        },
        seconds=6,
    )
    return [times.row("steered", "a steered generate, 32 tokens, against plain generate", 1.1)]


def measure() -> list[Row]:
    return [*edited_program(), *steered_generation()]


if __name__ == "__main__":
    main(measure)
