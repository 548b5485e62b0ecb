"""`jit(capture(f))` against the jitted function that returns its intermediates: is it the same program?"""

from __future__ import annotations

import jax

import sonde
from measure import Row, against, cost, interleaved, main
from transformer import Size, by_hand, make, model


def measure() -> list[Row]:
    size = Size(width=128, batch=2, length=32)
    params, x = make(size)
    forward = model(size.heads)
    captured, hand = jax.jit(sonde.capture(forward)), jax.jit(by_hand(forward))
    _, records = captured(params, x)
    assert len(records) == size.sites

    mine, base = cost(captured, params, x), cost(hand, params, x)
    times = interleaved({"by hand": lambda: hand(params, x), "capture": lambda: captured(params, x)}, turn=0.02)
    return [
        against("jit(capture(f)): flops", 1.02, mine.flops, base.flops, "flops"),
        against("jit(capture(f)): peak memory", 1.02, mine.peak, base.peak, "bytes"),
        times.row("capture", "jit(capture(f)): run time, beyond the spread", 1.05, beyond_spread=True),
    ]


if __name__ == "__main__":
    main(measure)
