"""`capture(jit(f))`, called again and again, against the jitted function that returns its intermediates.

The program computes next to nothing, so only the cost of calling is measured: the time of the calling thread until the
call returns.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp

import sonde
from measure import Row, interleaved, main

SITES = 48


def chain(x: jax.Array, mark: Any = sonde.sow) -> jax.Array:
    for i in range(SITES):
        x = mark(x * 0.5 + 1.0, f"steps/{i}")
    return x


def chain_by_hand(x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    seen: list[jax.Array] = []

    def keep(value: jax.Array, name: str) -> jax.Array:
        del name
        seen.append(value)
        return value

    return chain(x, keep), seen


def measure() -> list[Row]:
    x = jnp.ones((2, 8))
    hand, jitted = jax.jit(chain_by_hand), jax.jit(chain)

    def hidden_by_hand(x: jax.Array) -> Any:
        y, seen = hand(x)
        return y + 1, seen

    captured = sonde.capture(jitted)
    hidden = sonde.capture(lambda x: jitted(x) + 1)
    assert len(captured(x)[1]) == len(hidden(x)[1]) == SITES

    direct = interleaved(
        {
            "by hand": lambda: hand(x),
            "capture": lambda: captured(x),
            "capture each time": lambda: sonde.capture(jitted)(x),
        },
        seconds=5,
        wait=False,
        clock=time.thread_time,
    )
    inside = interleaved(
        {"by hand": lambda: hidden_by_hand(x), "capture": lambda: hidden(x)},
        seconds=5,
        wait=False,
        clock=time.thread_time,
    )
    return [
        direct.row("capture", "capture(jit(f)): a call, 48 sites", 1.2),
        direct.row("capture each time", "capture(jit(f)), made anew for every call", None),
        inside.row("capture", "capture(lambda x: jitted(x) + 1): a call, 48 sites", 2.7),
    ]


if __name__ == "__main__":
    main(measure)
