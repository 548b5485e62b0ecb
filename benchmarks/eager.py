"""Eager `capture(f)` against eager `f`: what does a capture cost if nothing is compiled?

Operations this small run on the calling thread, so its own time is measured.
"""

from __future__ import annotations

import time

import jax

import sonde
from measure import Row, interleaved, main
from transformer import Size, loss_of, make, model


def measure() -> list[Row]:
    size = Size(width=32, batch=1, length=8)
    params, x = make(size)
    forward = model(size.heads)
    captured = sonde.capture(forward)
    assert len(captured(params, x)[1]) == size.sites
    forwards = interleaved(
        {"f": lambda: forward(params, x), "capture": lambda: captured(params, x)}, turn=0.03, clock=time.thread_time
    )

    small = Size(blocks=3, width=32, batch=1, length=8)
    params_small, x_small = make(small)
    grad = jax.value_and_grad(loss_of(forward))
    with_grads = sonde.capture(grad, grads=True)
    assert len(with_grads(params_small, x_small)[1]) == small.sites
    backwards = interleaved(
        {"f": lambda: grad(params_small, x_small), "capture": lambda: with_grads(params_small, x_small)},
        turn=0.03,
        clock=time.thread_time,
        seconds=6,
    )
    return [
        forwards.row("capture", "eager capture(f) against eager f", 1.5),
        backwards.row("capture", "eager capture(value_and_grad(f), grads=True) against eager value_and_grad(f)", 1.5),
    ]


if __name__ == "__main__":
    main(measure)
