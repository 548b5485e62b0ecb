"""Pretrained models in which every interesting value is a site, with the same names in every architecture.

load(folder)                        a model from a Hugging Face folder, a GGUF file, or a name on the hub
from_config(config)                 the same with initial weights
save(model, folder)                 writes what `transformers` reads
generate(model, prompts)            continues prompts, with a cache
from_token(new, n)                  an edit that begins when generated token `n` is read
sentence_vectors(model, texts)      texts as vectors, from an encoder
read_named_arrays(file)             the arrays of a file of weights; nothing in it is run
path("smollm2"), path("minilm")     where the weights are that Python packages hold
SITES                               the names of the sites, with those of TransformerLens and Hugging Face
"""

from sonde._lazy_names import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
