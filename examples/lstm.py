"""An LSTM learns to remember, and its gates show when it does.

At every step there is a number, and sometimes a flag. The answer is always the last number that came with a flag, so
the network must store a number when there is a flag, and keep it otherwise. The gates are sites of the cell.
Recording them through the loop gives one row per step.

    python examples/lstm.py [--quick]
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from terminal import heat_map, training

import sonde
from sonde import nnx

LENGTH, HIDDEN, BATCH = 24, 24, 64


class Memory(nnx.Module):
    """An LSTM and a linear read-out."""

    def __init__(self, rngs: nnx.Rngs):
        self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(2, HIDDEN, rngs=rngs))
        self.read = nnx.Linear(HIDDEN, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.read(self.rnn(x))[..., 0]


def sequences(key: jax.Array, n: int = BATCH) -> tuple[jax.Array, jax.Array]:
    """Numbers and flags, and the last flagged number at every step. The first step always has a flag."""
    numbers = jax.random.uniform(key, (n, LENGTH), minval=-1, maxval=1)
    flags = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.15, (n, LENGTH)).at[:, 0].set(True)
    last = jax.lax.cummax(jnp.where(flags, jnp.arange(LENGTH), 0), axis=1)
    return jnp.stack([numbers, flags.astype(jnp.float32)], -1), jnp.take_along_axis(numbers, last, 1)


def loss_fn(model: Memory, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((model(x) - y) ** 2)


@nnx.jit
def train_step(model: Memory, optimizer: nnx.Optimizer, key: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(loss_fn, argnums=nnx.DiffState(0, nnx.Param))(model, *sequences(key))
    optimizer.update(model, grads)
    return loss


def main() -> None:
    console = Console()
    steps = 500 if "--quick" in sys.argv else 2500
    model = Memory(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(optax.cosine_decay_schedule(1e-2, steps)), wrt=nnx.Param)
    x, y = sequences(jax.random.key(1))

    before = loss_fn(model, x, y)
    for step, losses in training(console, steps):
        losses.append(train_step(model, optimizer, jax.random.key(100 + step)))
    console.print(f"mean squared error {before:.4f} at first, {loss_fn(model, x, y):.4f} after {steps} steps")

    # The loop is inside the model; the records still have one row per step.
    _, records = sonde.capture(model, "rnn/cell/*")(x)
    flags = np.asarray(x[..., 1].T, bool)
    table = Table("gate", "with a flag", "without", title="how far the gates are open, on average")
    for path, record in records.items():
        gate = np.abs(np.asarray(record.value))  # (steps, batch, hidden)
        table.add_row(path, f"{gate[flags].mean():.2f}", f"{gate[~flags].mean():.2f}")
    console.print(table)

    forget = np.asarray(records["rnn/cell/forget_gate"].value)
    flips = forget[~flags].mean(0) - forget[flags].mean(0)
    units = np.argsort(flips)[::-1][:6]  # units that keep without a flag and forget with one
    picture = np.concatenate([flags[None, :, 0], forget[:, 0, units].T])
    title = "first row: flags; below: forget gates of six units; from left to right: steps"
    console.print(Panel.fit(heat_map(picture, console, high=1.0), title=title))
    console.print(f"the unit that remembers best keeps {flips.max():.0%} more without a flag than with one")


if __name__ == "__main__":
    main()
