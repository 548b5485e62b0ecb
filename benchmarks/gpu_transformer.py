"""12 transformer blocks of width 1024 on a GPU, 48 sites, values and gradients, against by hand.

Runs on the available device and prints which. On a CPU the model is much smaller and there are no bounds, unless the
full size is requested with `--full`.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp

import sonde
from measure import Row, against, cost, interleaved, main
from transformer import Size, by_hand, gradients_by_hand, loss_of, make, model

FULL = Size(width=1024, heads=16, batch=8, length=1024)
SMALL = Size(width=64, heads=4, batch=2, length=32)


def measure() -> list[Row]:
    device = jax.devices()[0]
    full = device.platform != "cpu" or "--full" in sys.argv
    size, bound = (FULL, 1.02) if full else (SMALL, None)
    where = f"{device.device_kind}, width {size.width}"
    params, x = make(size)
    forward = model(size.heads)

    hand, captured = jax.jit(by_hand(forward)), jax.jit(sonde.capture(forward))
    step = jax.value_and_grad(loss_of(forward))
    hand_grads, captured_grads = jax.jit(gradients_by_hand(forward)), jax.jit(sonde.capture(step, grads=True))
    _check_same(hand_grads(params, x), captured_grads(params, x))

    values = interleaved(
        {"by hand": lambda: hand(params, x), "capture": lambda: captured(params, x)}, seconds=6, turn=0.05
    )
    grads = interleaved(
        {"by hand": lambda: hand_grads(params, x), "capture": lambda: captured_grads(params, x)},
        seconds=8,
        turn=0.1,
    )
    mine, base = cost(captured_grads, params, x), cost(hand_grads, params, x)
    return [
        values.row("capture", f"{where}: values, run time", bound),
        grads.row("capture", f"{where}: values and gradients, run time", bound),
        against(f"{where}: values and gradients, flops", bound, mine.flops, base.flops, "flops"),
        against(f"{where}: values and gradients, peak memory", bound, mine.peak, base.peak, "bytes"),
    ]


def _check_same(hand, captured) -> None:
    """Checks that both compute the same."""
    _, values, grads = hand
    _, records = captured
    assert len(records) == len(values)
    for value, grad, record in zip(values, grads, records.values()):
        assert jnp.allclose(value, record.value, rtol=1e-3, atol=1e-3)
        assert jnp.allclose(grad, record.grad, rtol=1e-2, atol=1e-2 * float(jnp.abs(grad).max()))


if __name__ == "__main__":
    main(measure)
