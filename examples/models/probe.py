"""From which layer on does "it" encode whether it refers to an animal or a city? A linear probe at every layer."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from drawing import lines

import sonde
from sonde import models

ANIMALS = "dog cat horse cow pig sheep goat lion tiger bear wolf fox rabbit mouse whale shark eagle frog"
CITIES = "Paris London Rome Berlin Madrid Vienna Tokyo Moscow Cairo Boston Chicago Sydney Dublin Athens Oslo"
animals, cities = ANIMALS.split(" "), CITIES.split(" ")
model = models.load(models.path("smollm2"), layers="scan")
words = animals + cities
batch = model.tokenizer.batch([f"We talked about the {word}, and then we saw it" for word in words])
labels = np.array([1.0] * len(animals) + [-1.0] * len(cities))


def at_it(x: jnp.ndarray) -> jnp.ndarray:
    return x[jnp.arange(len(words)), batch.mask.sum(1) - 1]


run = sonde.capture(model, "embedded", "blocks/*/out", reduce=at_it)
_, records = run(jnp.asarray(batch.tokens), mask=jnp.asarray(batch.mask))
layers = np.concatenate([records["embedded"].value[None], records["blocks/*/out"].value])
parts = np.random.default_rng(0).permutation(len(words)) % 6
right = []
for values in layers:
    found = np.zeros(len(words), bool)
    for part in range(6):  # test words are not among the training words
        seen, asked = values[parts != part], values[parts == part]
        mean = seen.mean(0)
        dual = np.linalg.solve((seen - mean) @ (seen - mean).T + 1.0 * np.eye(len(seen)), labels[parts != part])
        found[parts == part] = ((asked - mean) @ (seen - mean).T @ dual > 0) == (labels[parts == part] > 0)
    right.append(found.mean())
print(f"right before the first layer: {right[0]:.0%}, at best: {max(right):.0%} after layer {int(np.argmax(right))}")
lines("probe", {"right": np.array(right)}, title='is "it" an animal or a city?', x="layer", y="share right")
