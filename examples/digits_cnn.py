"""A convolutional network reads handwritten digits, and a capture shows what its layers do.

It trains on scikit-learn's digits (8 by 8 pixels) to over 97 % test accuracy in well under a minute on two cores.
Then one pass over the test images records the output of every layer: its range, and how well it separates the
ten digits.

    python examples/digits_cnn.py
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from terminal import heat_map, training

from sonde import nnx

EPOCHS, BATCH = 15, 64


class CNN(nnx.Module):
    """Two convolutions with batch normalization, then two dense layers."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.norm1 = nnx.BatchNorm(16, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.norm2 = nnx.BatchNorm(32, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.hidden = nnx.Linear(4 * 4 * 32, 64, rngs=rngs)
        self.head = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.relu(self.norm1(self.conv1(x)))
        x = nnx.max_pool(nnx.relu(self.norm2(self.conv2(x))), (2, 2), strides=(2, 2))
        x = nnx.relu(self.hidden(self.dropout(x.reshape(len(x), -1))))
        return self.head(x)


def loss_fn(model: CNN, images: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


@nnx.jit
def train_step(model: CNN, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(loss_fn, argnums=nnx.DiffState(0, nnx.Param))(model, images, labels)
    optimizer.update(model, grads)
    return loss


@nnx.jit
def predict(model: CNN, images: jax.Array) -> jax.Array:
    return model(images).argmax(-1)


def separation(values: np.ndarray, labels: np.ndarray) -> float:
    """The share of a layer's variance that is between the digits, not within one: 0 separates nothing, 1 everything."""
    flat = values.reshape(len(values), -1)
    means = np.stack([flat[labels == digit].mean(0) for digit in range(10)])
    return float(((means[labels] - flat.mean(0)) ** 2).sum() / ((flat - flat.mean(0)) ** 2).sum())


def main() -> None:
    console = Console()
    digits = load_digits()
    images = (digits.images[..., None] / 16).astype(np.float32)
    x, x_test, y, y_test = train_test_split(images, digits.target, test_size=0.2, random_state=0)

    start = time.perf_counter()
    model = CNN(nnx.Rngs(0))
    schedule = optax.cosine_decay_schedule(3e-3, EPOCHS * (len(x) // BATCH))
    optimizer = nnx.Optimizer(model, optax.adamw(schedule), wrt=nnx.Param)
    per_epoch, random = len(x) // BATCH, np.random.default_rng(0)
    order = np.concatenate([random.permutation(len(x))[: per_epoch * BATCH] for _ in range(EPOCHS)])
    model.train()
    for step, losses in training(console, EPOCHS * per_epoch):
        rows = order[step * BATCH : (step + 1) * BATCH]
        losses.append(train_step(model, optimizer, x[rows], y[rows]))
    model.eval()
    predicted = np.asarray(predict(model, x_test))
    seconds = time.perf_counter() - start

    # Every layer's output, in one pass, without changing the model.
    _, seen = nnx.capture(model, nnx.Intermediate, method_outputs=nnx.Intermediate)(jnp.asarray(x_test))
    table = Table("layer", "output", "mean", "std", "digits told apart", title="the test images, layer by layer")
    for name in ("conv1", "norm1", "conv2", "norm2", "dropout", "hidden", "head"):
        value = np.asarray(seen[name]["__call__"].get_value()[0])
        shape = "x".join(map(str, value.shape[1:]))
        table.add_row(name, shape, f"{value.mean():.2f}", f"{value.std():.2f}", f"{separation(value, y_test):.0%}")
    console.print(table)

    maps = np.maximum(np.asarray(seen["norm1"]["__call__"].get_value()[0])[0], 0)
    strongest = np.argsort(maps.sum((0, 1)))[::-1][:4]
    panels = [Panel.fit(heat_map(x_test[0, ..., 0], console), title=f"a {y_test[0]}")]
    panels += [Panel.fit(heat_map(maps[..., c], console), title=f"channel {c}") for c in strongest]
    console.print(Columns(panels))

    wrong = np.flatnonzero(predicted != y_test)
    mistakes = ", ".join(f"{y_test[i]} read as {predicted[i]}" for i in wrong) or "none"
    console.print(f"mistakes: {mistakes}")
    console.print(f"test accuracy {np.mean(predicted == y_test):.2%} after {seconds:.1f} s")


if __name__ == "__main__":
    main()
