"""A small language model whose layers are a list, and the same one whose layers are a scan."""

from __future__ import annotations

import functools

import jax
import numpy as np

from sonde import nnx
from sonde.models.config import Config
from sonde.models.decoder import Decoder

LAYERS = 3
TOKENS = (np.arange(6, dtype=np.int32)[None] * 3 + 1) % 20
OTHERS = (np.arange(6, dtype=np.int32)[None] * 7 + 2) % 20


@functools.cache
def both() -> dict[str, Decoder]:
    """The two models, by what their layers are."""
    config = Config(
        "llama",
        layers=LAYERS,
        width=16,
        heads=2,
        hidden=32,
        depth=8,
        key_heads=2,
        vocabulary=20,
        kind_of=(0,) * LAYERS,
        gated=True,
        tied=True,
    )
    listed, scanned = (Decoder(config, layers=kind, rngs=nnx.Rngs(0)) for kind in ("list", "scan"))
    stacked = nnx.state(scanned.blocks)
    for i in range(LAYERS):
        nnx.update(listed.blocks[i], jax.tree.map(lambda x, i=i: np.asarray(x)[i], stacked))
    for name in ("embed", "norm"):
        nnx.update(getattr(listed, name), nnx.state(getattr(scanned, name)))
    return {"list": listed, "scan": scanned}
