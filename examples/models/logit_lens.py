"""What would SmolLM2 say if it stopped at this layer? The logit lens over a sentence."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from drawing import heat

from sonde import models
from sonde.tools import logit_lens

model = models.load(models.path("smollm2"), layers="scan")
tokens = model.tokenizer.encode("The Eiffel Tower is in the city of")
lens = logit_lens(model, "blocks/*/out", readout=model.readout, k=1)(jnp.asarray([tokens]))
sure = np.stack([sure for _, _, sure in lens.rows()])
words = [model.tokenizer.pieces(best) for _, best, _ in lens.rows()]
print("layer  after the last word, the model would say")
for layer in range(0, len(words), 3):
    print(f"{layer:5}  {words[layer][-1]!r} ({sure[layer, -1]:.0%})")
print(f"   end  {words[-1][-1]!r} ({sure[-1, -1]:.0%})")
heat("logit_lens", sure, model.tokenizer.pieces(tokens), title="what SmolLM2 would say at every layer", text=words)
