"""Which layers of SmolLM2 say "Paris"? Direct logit attribution: the logit as a sum over attention layers and MLPs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from drawing import lines

import sonde
from sonde import models

model = models.load(models.path("smollm2"), layers="scan")
tokenizer = model.tokenizer
tokens = jnp.asarray([tokenizer.encode("The Eiffel Tower is in the city of")])
right, wrong = tokenizer.one(" Paris"), tokenizer.one(" London")
parts = ("embedded", "blocks/*/attn/out", "blocks/*/mlp/out", "blocks/*/out")
logits, records = sonde.capture(model, *parts, reduce=lambda x: x[0, -1])(tokens)
embedded, attention, mlps, stream = (np.asarray(records[part].value) for part in parts)

# The last norm divides by one number, which is known here, so the logits are linear in what the layers add.
size = np.sqrt((stream[-1] ** 2).mean() + model.config.epsilon)
table = np.asarray(model.embed.embedding[...])
direction = np.asarray(model.norm.scale[...]) * (table[right] - table[wrong]) / size
said = {"attention": attention @ direction, "MLP": mlps @ direction}
whole = float(logits[0, -1, right] - logits[0, -1, wrong])
added = embedded @ direction + sum(values.sum() for values in said.values())
assert abs(added - whole) < 1e-3 * abs(whole) + 1e-3, (added, whole)
print(f"Paris over London: {whole:.2f}, of which attention {said['attention'].sum():.2f}, MLPs {said['MLP'].sum():.2f}")
for kind, values in said.items():
    best = np.argsort(-values)[:3]
    print(f"most of it from {kind}: " + ", ".join(f"layer {layer} ({values[layer]:+.2f})" for layer in best))
lines("attribution", said, title="Paris over London, by layer", x="layer", y="logits")
