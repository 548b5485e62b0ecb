"""Where does SmolLM2 store which city the sentence is about? Patches every position of every layer in one call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from drawing import heat

from sonde import models
from sonde.tools import patch_sweep

model = models.load(models.path("smollm2"), layers="scan")
tokenizer = model.tokenizer
clean, corrupt = (
    jnp.asarray([tokenizer.encode(f"{city} is the capital city of the country of")]) for city in ("Paris", "Rome")
)
assert clean.shape == corrupt.shape
right, wrong = tokenizer.one(" France"), tokenizer.one(" Italy")


def metric(logits: jax.Array) -> jax.Array:
    return logits[0, -1, right] - logits[0, -1, wrong]


sweep = patch_sweep(model, "blocks/*/out", metric=metric)((clean,), (corrupt,))
restored = sweep.stacked()
print(f"France over Italy: {float(sweep.clean):.2f} after Paris, {float(sweep.corrupt):.2f} after Rome")
words = tokenizer.pieces(np.asarray(clean)[0])
for position, word in enumerate(words):
    layers = np.flatnonzero(restored[:, position] > 0.5)
    if layers.size:
        print(f"{word!r} carries it in layers {layers.min()} to {layers.max()}")
heat("patching", restored, words, title="how much of the answer comes back when one value is that of Paris")
