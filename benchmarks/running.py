"""A script under `sonde run --every 10`, against the script alone: its loop of jitted steps, with nothing wrong.

Both are run in this process. The steps are of two sizes, since looking at the results costs the same for both.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from measure import Row, interleaved, main
from sonde.cli.watched_script import Watch, watching
from transformer import Size, loss_of, make, model, unmarked


def measure() -> list[Row]:
    rows = []
    for width, batch in ((64, 4), (256, 2)):
        size = Size(blocks=4, width=width, batch=batch, length=64)
        params, x = make(size)
        loss = loss_of(model(size.heads))

        def train_step(params, x, loss=loss):
            value, grads = jax.value_and_grad(lambda p: loss(p, x, unmarked))(params)
            return jax.tree.map(lambda p, g: p - 1e-6 * g, params, grads), value

        bare = jax.jit(train_step)
        with watching(Watch(every=10)):
            watched = jax.jit(lambda params, x, step=train_step: step(params, x))

        def twenty(step, params=params, x=x):
            for _ in range(20):
                params, value = step(params, x)
            return jnp.float32(value)

        times = interleaved(
            {
                "bare": lambda twenty=twenty, step=bare: twenty(step),
                "run": lambda twenty=twenty, step=watched: twenty(step),
            },
            seconds=8,
        )
        rows.append(times.row("run", f"sonde run --every 10, width {width}: twenty steps", 1.05, beyond_spread=True))
    return rows


if __name__ == "__main__":
    main(measure)
