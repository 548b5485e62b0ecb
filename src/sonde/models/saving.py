"""`save`: a model as a folder that `transformers` reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sonde import nnx
from sonde._atomic_files import replaced_file
from sonde.errors import ModelFileError
from sonde.models.architectures import find
from sonde.models.files.safetensors import write_folder
from sonde.models.name_tables import TensorRow, expand
from sonde.models.weights import number_of_layers, parameters_of

LARGEST_FILE = 5 * 10**9


def save(model: Any, folder: str | Path, *, largest_file: int = LARGEST_FILE) -> None:
    """Writes a model as `config.json`, `.safetensors` files, and the files of its tokenizer.

    Tensors are written one by one. Weights are saved as they are now, including changes by training.

    Args:
        model: A model from `load` or `new`.
        folder: The folder to write to; it is made if it does not exist.
        largest_file: The maximum number of bytes per file.

    Raises:
        ModelFileError: The model has parameters that its architecture has no tensor for, such as those of an adapter.

    Example:
        >>> import tempfile, os
        >>> from sonde import models
        >>> model = models.from_config({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1, "hidden_size": 8,
        ...                     "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 32})
        >>> folder = tempfile.mkdtemp()
        >>> models.save(model, folder)
        >>> sorted(os.listdir(folder))
        ['config.json', 'model.safetensors']
    """
    architecture, _ = find(model.config.source)
    rows = [row for row in expand(architecture.rows(model.config), number_of_layers(model.config)) if row.ours]
    values = _by_layer(parameters_of(model))
    saved_paths = {path for row in rows for path in row.ours}
    surplus = sorted(set(values) - saved_paths)
    if surplus:
        raise ModelFileError(
            f"a {architecture.name} checkpoint has no tensor for {', '.join(surplus[:8])}. Merge adapters into the "
            "weights they belong to before saving."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder, _tensors(rows, values), largest=largest_file)
    config = dict(model.config.source) | {"torch_dtype": np.dtype(model.dtype).name}
    with replaced_file(folder / "config.json") as partial:
        partial.write_text(json.dumps(config, indent=2) + "\n")
    tokenizer = getattr(model, "tokenizer", None)
    if tokenizer is not None:
        tokenizer.save(folder)


def _by_layer(parameters: dict[str, Any]) -> dict[str, Any]:
    """Functions that return the values of parameters; for scanned layers, one per layer."""
    arrays: dict[str, Any] = {}
    for path, leaf in parameters.items():
        before, name, after = path.partition("blocks/")
        if name and not after.partition("/")[0].isdigit():
            for layer in range(leaf.shape[0]):
                arrays[f"{before}blocks/{layer}/{after}"] = (leaf, layer)
        else:
            arrays[path] = (leaf, None)
    return arrays


def _tensors(rows: list[TensorRow], values: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for row in rows:
        parts = [values[path] for path in row.ours]

        def numbers(row: TensorRow = row, parts: Any = parts) -> np.ndarray:
            return row.join(*(_numbers(*part) for part in parts))

        blanks = [np.broadcast_to(np.zeros((), leaf.dtype), _shape(leaf, layer)) for leaf, layer in parts]
        yield row.theirs, jax.ShapeDtypeStruct(row.join(*blanks).shape, parts[0][0].dtype), numbers


def _shape(leaf: Any, layer: int | None) -> tuple[int, ...]:
    return leaf.shape if layer is None else leaf.shape[1:]


def _numbers(leaf: nnx.Variable[Any], layer: int | None) -> np.ndarray:
    value = leaf[...]
    return np.asarray(value if layer is None else value[layer])


__all__ = ["save"]
