"""Models of `transformers`, randomly initialized, as originals of ports to `sonde.models`."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.models.cases import CASES, inputs, outputs

from sonde import models


@functools.cache
def original(name: str) -> Any:
    """A model of `transformers` that returns one array, with random weights."""
    import torch
    import transformers
    from tests.models.make_oracles import model_of

    transformers.logging.set_verbosity_error()

    class Original(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model_of(CASES[name])

        def forward(self, tokens: Any = None, images: Any = None) -> Any:
            arguments = {} if tokens is None else {"input_ids": tokens.long()}
            arguments |= {} if images is None else {"pixel_values": images.permute(0, 3, 1, 2)}
            made = self.model(**arguments)
            return next(made[key] for key in _RESULTS if made.get(key) is not None)

    return Original().eval()


@functools.cache
def folder(name: str) -> Path:
    """The folder of that model; deleted when the process ends."""
    made = tempfile.TemporaryDirectory()
    _FOLDERS.append(made)
    original(name).model.save_pretrained(made.name)
    return Path(made.name)


_FOLDERS: list[Any] = []
_RESULTS = ("logits", "prediction_logits", "logits_per_image", "text_embeds", "image_embeds", "last_hidden_state")


def port(name: str) -> Any:
    """The same model in `sonde.models`, anew."""
    return models.load(folder(name))


def given(name: str) -> dict[str, np.ndarray]:
    """What both are called with."""
    # `transformers` computes what it may for padding.
    return {key: value for key, value in inputs(CASES[name]).items() if key != "mask"}


def as_function(model: Any) -> Callable[..., jax.Array]:
    """A model as a function of what both are called with."""
    return lambda **given: outputs(model, {key: jnp.asarray(value) for key, value in given.items()})
