"""Tracing with a capture against tracing without: every call traces a function that JAX has not seen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax

import sonde
from measure import Row, interleaved, main
from transformer import Size, loss_of, make, model


def measure() -> list[Row]:
    return [
        compare("f", plain, blocks=12),
        compare("f with a jit inside", inner_jit, blocks=12),
        compare("value_and_grad(f), grads=True", gradient, blocks=6, grads=True),
    ]


def compare(what: str, fresh: Callable[..., Any], *, blocks: int, grads: bool = False) -> Row:
    """Traces the function that `fresh` makes of a model, a new one every time."""
    size = Size(blocks=blocks)
    args = make(size)
    forward = model(size.heads)
    times = interleaved(
        {
            "plain": lambda: jax.jit(fresh(forward)).trace(*args) and None,
            "capture": lambda: jax.jit(sonde.capture(fresh(forward), grads=grads)).trace(*args) and None,
        },
        seconds=7,
        clock=time.thread_time,
    )
    return times.row("capture", f"tracing capture({what}) against tracing it", 1.35)


def plain(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, x: forward(params, x)


def inner_jit(forward: Callable[..., Any]) -> Callable[..., Any]:
    jitted = jax.jit(plain(forward))
    return lambda params, x: jitted(params, x) + 1


def gradient(forward: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(loss_of(forward))


if __name__ == "__main__":
    main(measure)
