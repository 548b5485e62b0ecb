"""An architecture: the checkpoints it covers, how their config is read, and how their tensors are named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from sonde import nnx
from sonde.models.name_tables import TensorRow

Raw = Mapping[str, Any]
"""A checkpoint's own config: the contents of `config.json`."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How the checkpoints of some model classes are read.

    Attributes:
        name: The name of the architecture.
        classes: Names of the classes of `transformers`, as in `architectures` of a `config.json`.
        module: The class of the model.
        read: Reads the checkpoint's config; the second argument is the name of the class.
        rows: The table of names for a config.
        prefix: The prefix of all names but those of heads; some checkpoints leave it out.
        model_type: `model_type` of a `config.json` that does not name its class.
    """

    name: str
    classes: tuple[str, ...]
    module: type[nnx.Module]
    read: Callable[[Raw, str], Any]
    rows: Callable[[Any], list[TensorRow]]
    prefix: str = ""
    model_type: str | None = None
