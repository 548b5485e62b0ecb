"""A small language model, opened, and a way to ask what the page asks."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from sonde import models
from sonde.viewer.open import subject_of
from sonde.viewer.operations import Job, answer
from sonde.viewer.runs import Runs

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 3,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 40,
}
TOKENS, OTHERS = [1, 2, 3, 4, 2, 3], [5, 6, 7, 8, 6, 7]


@pytest.fixture(scope="session")
def model() -> models.Decoder:
    return models.from_config(CONFIG, layers="scan")


@pytest.fixture(scope="session")
def runs(model: models.Decoder) -> Runs:
    return Runs(subject_of(model, (jnp.asarray([TOKENS]),), title="small"))


@pytest.fixture
def ask(runs: Runs) -> Callable[..., Any]:
    """Asks about the small model, as the page does."""
    return lambda name, **data: answer(Job({"small": runs}), name, {"subject": "small", **data})


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    """An array of the page."""
    kind = "f64" if "f64" in packed else "f32"
    numbers = np.frombuffer(base64.b64decode(packed[kind]), {"f32": "<f4", "f64": "<f8"}[kind])
    return numbers.reshape(packed["shape"])
