"""A training step with statistics of all its sites every ten steps, against the bare step.

Ten steps are one call of each contender, so that a monitored one is among them. There are two widths: fetching numbers
costs the same for both, and reading activations matters less the more arithmetic there is per activation.
"""

from __future__ import annotations

import jax

from measure import Row, interleaved, main
from sonde.tools import monitor
from transformer import Size, loss_of, make, model, unmarked

STATISTICS = ["mean", "std", "norm", "grad_norm", "nonfinite"]


def measure() -> list[Row]:
    rows = []
    for width, batch in ((64, 4), (256, 2)):
        size = Size(blocks=4, width=width, batch=batch, length=64)
        params, x = make(size)
        loss = loss_of(model(size.heads))

        def train_step(params, x, mark=None, loss=loss):
            marks = () if mark is None else (mark,)
            value, grads = jax.value_and_grad(lambda p: loss(p, x, *marks))(params)
            return jax.tree.map(lambda p, g: p - 1e-6 * g, params, grads), value

        bare = jax.jit(lambda params, x, step=train_step: step(params, x, unmarked))
        monitored = monitor(jax.jit(train_step), {"**": STATISTICS}, every=10)

        def ten(step, params=params, x=x):
            for _ in range(10):
                params, value = step(params, x)
            return params, value

        times = interleaved(
            {"bare": lambda ten=ten, step=bare: ten(step), "monitored": lambda ten=ten, step=monitored: ten(step)},
            seconds=8,
        )
        question = f"monitor, every=10, width {width}: ten steps against bare ones"
        rows.append(times.row("monitored", question, 1.05, beyond_spread=True))
    return rows


if __name__ == "__main__":
    main(measure)
