"""Tracing with a capture against tracing without: every call traces a function that JAX has not seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

import sonde
from measure import Row, interleaved, main
from transformer import Size, loss_of, make, model


def measure() -> list[Row]:
    size = Size()
    params, x = make(size)
    forward = model(size.heads)
    loss = loss_of(forward)

    def tracing(make_fresh: Callable[[], Callable[..., Any]]) -> Callable[[], None]:
        def run() -> None:
            jax.jit(make_fresh()).trace(params, x)

        return run

    def plain() -> Callable[..., Any]:
        return lambda params, x: forward(params, x)

    def inner_jit() -> Callable[..., Any]:
        jitted = jax.jit(lambda params, x: forward(params, x))
        return lambda params, x: jitted(params, x) + 1

    def gradient() -> Callable[..., Any]:
        return jax.value_and_grad(lambda params, x: loss(params, x))

    rows = []
    for what, fresh, grads in (
        ("f", plain, False),
        ("f with a jit inside", inner_jit, False),
        ("value_and_grad(f), grads=True", gradient, True),
    ):
        times = interleaved(
            {
                "plain": tracing(fresh),
                "capture": tracing(lambda fresh=fresh, grads=grads: sonde.capture(fresh(), grads=grads)),
            },
            seconds=7,
        )
        rows.append(times.row("capture", f"tracing capture({what}) against tracing it", 1.35))
    return rows


if __name__ == "__main__":
    main(measure)
