"""Steers SmolLM2 toward joy or grief at one layer while it generates, from its third token on."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from drawing import lines

import sonde
from sonde import models

LAYER = 14
SITE = f"blocks/{LAYER}/out"
model = models.load(models.path("smollm2"), layers="scan")
tokenizer = model.tokenizer


def mean_at(text: str) -> jnp.ndarray:
    _, records = sonde.capture(model, SITE)(jnp.asarray([tokenizer.encode(text)]))
    return records[SITE].value[0].mean(0)


direction = mean_at("I am so happy, what a wonderful joy!") - mean_at("I am so sad, what a terrible grief!")
prompt = "I went to see my old friend, and"
for strength in (-3.0, 0.0, 3.0):
    push = models.from_token(lambda x, strength=strength: x + strength * direction, 2)
    text = sonde.edit(models.generate, {SITE: push})(model, prompt, max_new_tokens=24).texts[0]
    print(f"{strength:+.1f}: {prompt}{text!r}")

tokens, strengths = jnp.asarray([tokenizer.encode("The news today made me feel very")]), np.linspace(-3, 3, 7)
good, bad = tokenizer.one(" happy"), tokenizer.one(" sad")
pushes = [lambda x, s=s: x + s * direction for s in strengths]
logits = [sonde.edit(model, {SITE: push})(tokens)[0, -1] for push in pushes]
gap = np.array([float(row[good] - row[bad]) for row in logits])
print(f"happy over sad: {gap[0]:+.2f} pushed to grief, {gap[-1]:+.2f} pushed to joy")
lines("steering", {"happy over sad": gap}, title=f"pushed at layer {LAYER}", x="strength", y="logits", at=strengths)
