"""Training on several devices, with sharded parameters.

The layers declare along which axis their kernels are sharded. Optimizer moments, gradients and recorded values are
sharded too, and nothing is gathered: the records of a capture are arrays on the same devices.

The script splits the CPU into two devices; it works the same on two accelerators.

    python examples/several_devices.py [--quick]
"""

from __future__ import annotations

import os
import sys

# Before JAX is imported: later it would have no effect.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2".strip()

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType
from rich.console import Console
from rich.table import Table
from terminal import training

import sonde
from sonde import nnx

WIDTH, BATCH = 128, 256


class MLP(nnx.Module):
    """The first kernel is sharded by columns, the second by rows, so nothing is communicated between the two."""

    def __init__(self, rngs: nnx.Rngs):
        normal = nnx.initializers.lecun_normal()
        columns, rows = nnx.with_partitioning(normal, (None, "model")), nnx.with_partitioning(normal, ("model", None))
        split = {"out_sharding": ("model",)}
        self.up = nnx.Linear(8, WIDTH, kernel_init=columns, bias_metadata=split, rngs=rngs)
        self.down = nnx.Linear(WIDTH, 1, kernel_init=rows, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = sonde.sow(nnx.tanh(self.up(x)), "hidden")
        return self.down(hidden)[:, 0]


def batch(key: jax.Array) -> tuple[jax.Array, jax.Array]:
    x = jax.random.normal(key, (BATCH, 8))
    return x, jnp.sin(x[:, 0] * x[:, 1]) + x[:, 2]


def loss_fn(model: MLP, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.mean((model(x) - y) ** 2)


@nnx.jit
def train_step(model: MLP, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(loss_fn)(model, x, y)
    optimizer.update(model, grads)
    return loss


def describe(array: jax.Array) -> tuple[str, str, str]:
    """The shape of an array, the shape of one device's part, and the devices."""
    shapes = (array.shape, array.sharding.shard_shape(array.shape))
    whole, part = ("x".join(map(str, shape)) or "1" for shape in shapes)
    return whole, part, ", ".join(sorted(str(device) for device in array.devices()))


def main() -> None:
    console = Console()
    steps = 200 if "--quick" in sys.argv else 1000
    mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        model = MLP(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
        first = loss_fn(model, *batch(jax.random.key(1)))
        for step, losses in training(console, steps):
            losses.append(train_step(model, optimizer, *batch(jax.random.key(100 + step))))
        last = loss_fn(model, *batch(jax.random.key(1)))

        # One more step, captured: the value of the hidden layer, and its gradient.
        _, records = sonde.capture(train_step, grads=True)(model, optimizer, *batch(jax.random.key(2)))

    table = Table("array", "whole", "on one device", "devices", title=f"mesh of {mesh.size} devices")
    for path, variable in nnx.to_flat_state(nnx.state(model)):
        table.add_row("/".join(map(str, path)), *describe(variable.get_value()))
    for path, variable in nnx.to_flat_state(nnx.state(optimizer, nnx.OptVariable)):
        table.add_row("/".join(map(str, path)), *describe(variable.get_value()), style="dim")
    for path, record in records.items():
        table.add_row(f"value of {path}", *describe(record.value), style="bold")
        table.add_row(f"gradient of {path}", *describe(record.grad), style="bold")
    console.print(table)
    console.print(f"loss {first:.4f} at first, {last:.4f} after {steps} steps")


if __name__ == "__main__":
    main()
