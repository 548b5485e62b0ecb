"""Trains a small network, looks inside one training step, and reports what is wrong with it.

The network has six layers, and one of them is badly initialized: most of its units never fire. One pass over one
training step gives statistics of the values and of the gradients of every layer.

Run it with `python examples/look_inside.py`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import sonde

LAYERS, WIDTH, STEPS = 6, 64, 400
BAD_LAYER = 3


def init(key: jax.Array) -> list[dict[str, jax.Array]]:
    """Weights of the layers. The bad one has a bias that keeps most units below zero."""
    sizes = [2, *[WIDTH] * (LAYERS - 1), 1]
    params = []
    for i, (n_in, n_out, k) in enumerate(zip(sizes[:-1], sizes[1:], jax.random.split(key, LAYERS))):
        bias = jnp.full(n_out, -2.0 if i == BAD_LAYER else 0.0)
        params.append({"w": jax.random.normal(k, (n_in, n_out)) * jnp.sqrt(2 / n_in), "b": bias})
    return params


def model(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """A plain multi-layer network, with the value of every layer marked."""
    for i, layer in enumerate(params):
        with sonde.scope(f"layer{i}"):
            x = x @ layer["w"] + layer["b"]
            if i < LAYERS - 1:
                x = sonde.sow(jax.nn.relu(x), "out")
    return sonde.sow(x[:, 0], "prediction")


def loss(params: list[dict[str, jax.Array]], x: jax.Array, y: jax.Array) -> jax.Array:
    """Mean squared error."""
    return jnp.mean((model(params, x) - y) ** 2)


def batch(key: jax.Array, n: int = 256) -> tuple[jax.Array, jax.Array]:
    """Points in the plane, and a wavy surface over them."""
    x = jax.random.uniform(key, (n, 2), minval=-1, maxval=1)
    return x, jnp.sin(3 * x[:, 0]) * jnp.cos(2 * x[:, 1])


optimizer = optax.adam(1e-3)


@jax.jit
def train_step(params, state, x, y):
    """One step of Adam."""
    value, grads = jax.value_and_grad(loss)(params, x, y)
    updates, state = optimizer.update(grads, state)
    return optax.apply_updates(params, updates), state, value


def statistics(value: jax.Array) -> dict[str, jax.Array]:
    """The statistics of a value, computed inside the step, so that no large array leaves it."""
    dead = jnp.mean(jnp.all(value == 0, axis=0)) if value.ndim > 1 else jnp.zeros(())
    return {"mean": value.mean(), "std": value.std(), "norm": jnp.linalg.norm(value), "dead": dead}


def main() -> None:
    """Trains, captures one step, and prints a table."""
    console = Console()
    params = init(jax.random.key(0))
    state = optimizer.init(params)
    key = jax.random.key(1)

    # What would a capture see, and cost? Nothing runs here.
    console.print(sonde.sites(model)(params, batch(key)[0]))

    # Values and gradients of every site of a training step, in the pass that computes them.
    look = sonde.capture(train_step, grads=True, reduce=statistics)
    (_, _, _), before = look(params, state, *batch(key))

    columns = TextColumn("training"), BarColumn(), TextColumn("loss {task.fields[loss]:.4f}"), TimeRemainingColumn()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=STEPS, loss=float("nan"))
        for step in range(STEPS):
            params, state, value = train_step(params, state, *batch(jax.random.fold_in(key, step)))
            if step % 20 == 19:
                progress.update(task, completed=step + 1, loss=float(value))

    (_, _, _), after = look(params, state, *batch(key))
    table = Table("site", "std", "gradient norm", "dead units", "std after", "gradient after", "dead after")
    table.title = "one training step, before and after training"
    for path, record in before.items():
        cells = []
        for r in (record, after[path]):
            value, grad = r.value, r.grad
            cells += [f"{value['std']:.3f}", f"{grad['norm']:.2e}", f"{value['dead']:.0%}"]
        table.add_row(path, *cells)
    console.print(table)

    worst = max((p for p in before if p.endswith("out")), key=lambda p: float(before[p].value["dead"]))
    dead = float(before[worst].value["dead"])
    console.print(f"{dead:.0%} of the units of [bold]{worst}[/bold] never fired at the start: its bias is -2.")

    # Does the model need this layer? Run the trained model with its value replaced.
    x, y = batch(jax.random.key(9))
    silent = sonde.edit(loss, {worst: jnp.zeros_like})(params, x, y)
    console.print(f"loss {loss(params, x, y):.4f}; with {worst} silenced it would be {silent:.4f}")


if __name__ == "__main__":
    main()
