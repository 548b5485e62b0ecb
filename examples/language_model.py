"""A small transformer learns a refrain, and its attention weights show how.

Every line of the text is eight random letters, repeated four times. The first eight cannot be predicted; all later
letters can, by looking up the letter eight positions before the next one. After training, one pass records the
attention weights of every layer, from the sites of attention layers, and a table shows which heads look there.
Silencing the heads of a layer shows whether the model depends on them.

The model has what language models have: token and position embeddings, dropout, the output tied to the embedding, Adam.

    python examples/language_model.py [--quick]
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

LETTERS, PERIOD, LENGTH = 26, 8, 32
WIDTH, HEADS, BLOCKS, BATCH = 64, 4, 2, 32


class Block(nnx.Module):
    """Attention and a two-layer network, each added to its input."""

    def __init__(self, rngs: nnx.Rngs):
        self.norm1, self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs), nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.dropout(self.attention(self.norm1(x), is_causal=True))
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm2(x)))))


class LanguageModel(nnx.Module):
    """From letters to the scores of the next letter. The embedding is also the output layer."""

    def __init__(self, rngs: nnx.Rngs):
        self.letters = nnx.Embed(LETTERS, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(BLOCKS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        x = self.letters(text) + self.positions(jnp.arange(text.shape[-1]))
        for block in self.blocks:
            x = block(x)
        return self.letters.attend(self.norm(x))


def lines(key: jax.Array, n: int = BATCH) -> jax.Array:
    """Lines of text: eight random letters, repeated; one letter more than the model reads."""
    return jnp.tile(jax.random.randint(key, (n, PERIOD), 0, LETTERS), LENGTH // PERIOD + 1)[:, : LENGTH + 1]


def losses_of(model: LanguageModel, text: jax.Array) -> jax.Array:
    """The loss at every position of every line."""
    return optax.softmax_cross_entropy_with_integer_labels(model(text[:, :-1]), text[:, 1:])


def refrain_loss(model: LanguageModel, text: jax.Array) -> jax.Array:
    """The mean loss of the letters that can be known."""
    return losses_of(model, text)[:, PERIOD - 1 :].mean()


def where_the_next_letter_stands() -> np.ndarray:
    """For every position after the first refrain, the earlier positions that hold the next letter."""
    here, earlier = np.ogrid[PERIOD - 1 : LENGTH, :LENGTH]
    return ((here + 1 - earlier) % PERIOD == 0) & (earlier <= here)


@nnx.jit
def train_step(model: LanguageModel, optimizer: nnx.Optimizer, key: jax.Array) -> jax.Array:
    text = lines(key)
    loss = lambda model: losses_of(model, text).mean()  # noqa: E731
    value, grads = nnx.value_and_grad(loss, argnums=nnx.DiffState(0, nnx.Param))(model)
    optimizer.update(model, grads)
    return value


def main() -> None:
    console = Console()
    steps = 120 if "--quick" in sys.argv else 800
    model = LanguageModel(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(optax.cosine_decay_schedule(3e-3, steps)), wrt=nnx.Param)
    held_out = lines(jax.random.key(1))

    model.eval()
    before = refrain_loss(model, held_out)
    model.train()
    for step, losses in training(console, steps):
        losses.append(train_step(model, optimizer, jax.random.key(100 + step)))
    model.eval()
    after = refrain_loss(model, held_out)
    console.print(f"loss of the refrain {before:.3f} at first, {after:.3f} after {steps} steps")

    # The weights are sites of every attention layer: one pass is enough, and the model is unchanged.
    _, records = sonde.capture(model, "blocks/*/attention/weights")(held_out[:, :-1])
    there = where_the_next_letter_stands()
    title = "attention to where the next letter stands"
    table = Table("layer", *(f"head {i}" for i in range(HEADS)), "loss without the layer's heads", title=title)
    shares = []
    for path, record in records.items():
        known = np.asarray(record.value)[:, :, PERIOD - 1 :]  # (lines, heads, from, to)
        shares.append((known * there).sum(-1).mean((0, 2)))
        # Does the model need them? Replace the outputs of the heads by zeros.
        without = sonde.edit(refrain_loss, {path.replace("weights", "heads"): jnp.zeros_like})(model, held_out)
        table.add_row(path.removesuffix("/weights"), *(f"{s:.0%}" for s in shares[-1]), f"{without:.3f}")
    console.print(table)

    layer, head = (int(i) for i in np.unravel_index(np.argmax(shares), np.shape(shares)))
    weights = records[f"blocks/{layer}/attention/weights"].value[0, head]
    console.print(Panel.fit(heat_map(weights, console), title=f"blocks/{layer}, head {head}, one line"))
    console.print(f"head {head} of blocks/{layer} spends {np.max(shares):.0%} of its attention there")


if __name__ == "__main__":
    main()
