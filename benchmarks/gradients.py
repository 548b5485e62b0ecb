"""Values and gradients of all sites in one pass, against `value_and_grad` alone: is any work done twice?

Temporaries are what the compiled program needs beyond its arguments and outputs. Rematerialization shows in
a loop, whose iterations otherwise keep their intermediates for the backward pass; in a program without loops
XLA may undo it.
"""

from __future__ import annotations

import jax

import sonde
from measure import Row, against, cost, main
from transformer import SITES_PER_BLOCK, Size, loss_of, make, model, stacked, unmarked


def measure() -> list[Row]:
    size = Size(width=64, batch=4, length=64)
    params, x = make(size)
    rows = []
    for what, options in (
        ("", {}),
        (", under remat", {"remat": True}),
        (", scan", {"scan": True}),
        (", scan under remat", {"scan": True, "remat": True}),
    ):
        loss = loss_of(model(size.heads, **options))
        p = stacked(params) if "scan" in options else params
        captured = jax.jit(sonde.capture(jax.value_and_grad(loss), grads=True))
        alone = jax.jit(jax.value_and_grad(lambda params, x, loss=loss: loss(params, x, unmarked)))
        _, records = jax.eval_shape(captured, p, x)
        assert len(records) == (SITES_PER_BLOCK if "scan" in options else size.sites)
        mine, base = cost(captured, p, x), cost(alone, p, x)
        rows += [
            against(f"values and gradients: flops{what}", 1.02, mine.flops, base.flops, "flops"),
            against(f"values and gradients: temporaries{what}", 1.1, mine.temporary, base.temporary, "bytes"),
        ]
    return rows


if __name__ == "__main__":
    main(measure)
