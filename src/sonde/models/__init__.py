"""Pretrained models whose every interesting place is a site, under the same name in every architecture.

load(folder)                        a model from a Hugging Face folder, a GGUF file, or a name on the hub
new(config)                         the same with initial weights
save(model, folder)                 writes what `transformers` reads
"""

from sonde.models.loading import load, new
from sonde.models.saving import save

__all__ = ["load", "new", "save"]
