"""Finds the induction heads of SmolLM2, from the attention of every head on random tokens that are repeated once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from drawing import heat

import sonde
from sonde import models

HALF = 24
model = models.load(models.path("smollm2"), layers="scan")
once = jax.random.randint(jax.random.key(0), (4, HALF), 1000, 40000)
tokens = jnp.concatenate([once, once], axis=1)


def score(weights: jax.Array) -> jax.Array:
    """The share of its attention that every head gives to the token after the earlier occurrence of the current one."""
    at = jnp.arange(HALF, 2 * HALF - 1)
    return weights[:, :, at, at - HALF + 1].mean((0, 2))


_, records = sonde.capture(model, "blocks/*/attn/weights", reduce=score)(tokens)
scores = np.asarray(records["blocks/*/attn/weights"].value)
for layer, head in np.dstack(np.unravel_index(np.argsort(-scores, axis=None)[:5], scores.shape))[0]:
    print(f"layer {layer:2}, head {head}: {scores[layer, head]:.0%} of its attention")
heat("induction_heads", scores, [f"head {i}" for i in range(scores.shape[1])], title="induction score")
