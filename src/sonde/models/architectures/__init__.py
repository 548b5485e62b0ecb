"""The supported architectures, one small file each: a config reader and a table of names."""

from __future__ import annotations

import dataclasses
from typing import Any

from sonde.errors import ModelFileError
from sonde.models.architectures.architecture import Architecture, Raw
from sonde.models.architectures.bert import BERT, ROBERTA
from sonde.models.architectures.clip import CLIP_BOTH, CLIP_IMAGE, CLIP_TEXT
from sonde.models.architectures.gemma import GEMMA1, GEMMA2, GEMMA3
from sonde.models.architectures.gpt2 import GPT2
from sonde.models.architectures.gpt_neox import GPT_NEOX
from sonde.models.architectures.llama import LLAMA, MISTRAL
from sonde.models.architectures.phi import PHI, PHI3
from sonde.models.architectures.qwen import QWEN2, QWEN3
from sonde.models.architectures.vit import VIT
from sonde.models.files.untrusted import checked_config, reading

ALL: tuple[Architecture, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    GEMMA1,
    GEMMA2,
    GEMMA3,
    GPT2,
    GPT_NEOX,
    PHI,
    PHI3,
    BERT,
    ROBERTA,
    VIT,
    CLIP_BOTH,
    CLIP_TEXT,
    CLIP_IMAGE,
)
_BY_CLASS = {name: architecture for architecture in ALL for name in architecture.classes}
_BY_TYPE = {architecture.model_type: architecture for architecture in ALL}


def find(raw: Raw) -> tuple[Architecture, str]:
    """The architecture of a checkpoint, and the name of its class.

    Args:
        raw: The contents of `config.json`.

    Raises:
        ModelFileError: The architecture is not supported.
    """
    classes = raw.get("architectures") or ()
    for name in classes:
        if name in _BY_CLASS:
            return _BY_CLASS[name], name
    architecture = None if classes else _BY_TYPE.get(raw.get("model_type"))
    if architecture is not None:
        return architecture, (architecture.classes or ("",))[0]
    said = ", ".join(classes) or repr(raw.get("model_type"))
    raise ModelFileError(f"the architecture {said} is not supported. Supported: {', '.join(sorted(_BY_CLASS))}.")


def read_config(raw: Raw) -> tuple[Architecture, Any]:
    """The architecture of a checkpoint and its config.

    Raises:
        ModelFileError: The architecture is not supported, or the config lacks an entry or has one that cannot be.
    """
    checked = checked_config(raw)
    architecture, name = find(checked)
    try:
        with reading("the config", f"the config of a {name}"):
            return architecture, dataclasses.replace(architecture.read(checked, name), source=raw)
    except ModelFileError as error:
        if isinstance(error.__cause__, KeyError):
            lacking = f"the config of a {name} lacks the entry {error.__cause__.args[0]!r}."
            raise ModelFileError(lacking) from error.__cause__
        raise


__all__ = ["ALL", "Architecture", "find", "read_config"]
