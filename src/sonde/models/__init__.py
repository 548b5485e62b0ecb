"""Pretrained models in which every interesting value is a site, with the same names in every architecture.

load(folder)                        a model from a Hugging Face folder, a GGUF file, or a name on the hub
new(config)                         the same with initial weights
save(model, folder)                 writes what `transformers` reads
generate(model, prompts)            continues prompts, with a cache
from_token(new, n)                  an edit that begins when generated token `n` is read
sentence_vectors(model, texts)      texts as vectors, from an encoder
smollm2(), minilm()                 paths of weights that Python packages hold
SITES                               the names of the sites, with those of TransformerLens and Hugging Face
"""

from sonde.models.clip import CLIP
from sonde.models.config import Config
from sonde.models.decoder import Decoder
from sonde.models.encoder import Encoder
from sonde.models.generation import Generated, from_token, generate
from sonde.models.loading import load, new
from sonde.models.saving import save
from sonde.models.sentences import sentence_vectors
from sonde.models.sites import SITES, SiteNames
from sonde.models.tokens import Tokenizer
from sonde.models.vision import Vision
from sonde.models.weight_packages import minilm, smollm2

__all__ = [
    "CLIP",
    "SITES",
    "Config",
    "Decoder",
    "Encoder",
    "Generated",
    "SiteNames",
    "Tokenizer",
    "Vision",
    "from_token",
    "generate",
    "load",
    "minilm",
    "new",
    "save",
    "sentence_vectors",
    "smollm2",
]
