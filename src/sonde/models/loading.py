"""`load`: a model from a folder of Hugging Face, a GGUF file, or a name on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from sonde import _extras, nnx
from sonde.errors import ModelFileError
from sonde.models.architectures import Architecture, read_config
from sonde.models.clip import TowersConfig
from sonde.models.config import Config
from sonde.models.files import Tensors
from sonde.models.files.safetensors import read_folder
from sonde.models.files.untrusted import read_json, reading
from sonde.models.stack import Layers
from sonde.models.tokens import Tokenizer
from sonde.models.weights import abstract, fill, number_of_layers

M = TypeVar("M", bound=nnx.Module)


@overload
def load(
    source: str | Path,
    *,
    kind: type[M],
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    layers: Layers = "list",
) -> M: ...
@overload
def load(
    source: str | Path,
    *,
    kind: None = None,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    layers: Layers = "list",
) -> Any: ...
def load(
    source: str | Path,
    *,
    kind: type[nnx.Module] | None = None,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    layers: Layers = "list",
) -> nnx.Module:
    """Loads a model.

    Tensors are read one by one from the mapped file, straight to their devices. Either a whole model is
    returned or an error is raised. No pickle is ever opened.

    Args:
        source: A folder with `config.json`, `.safetensors` files and, for texts, `tokenizer.json`; a `.gguf` file; or,
            if `huggingface_hub` is installed, the name of a repository, `"org/name"`.
        kind: The class that the model must have, such as `models.Decoder`; type checkers then know it. Any, if None.
        dtype: The dtype of parameters and computations; None keeps the checkpoint's, or takes float32 if that
            is quantized.
        mesh: Devices to spread the model over; None puts it on the default device.
        layers: `"list"`: layers are separate Modules, `blocks/0` and so on. `"scan"`: they are one Module with an
            axis for the layers, run as one loop, which compiles faster. Both have the same weights.

    Returns:
        A `Decoder`, `Encoder`, `Vision` or `CLIP`, with its tokenizer as `model.tokenizer`.

    Raises:
        ModelFileError: The model is not of this kind; the architecture is not supported; tensors are missing, surplus
            or of the wrong shape; a file is truncated.
        FileNotFoundError: There is nothing at `source`.

    Example:
        >>> import tempfile, jax.numpy as jnp
        >>> from sonde import models
        >>> config = {"architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 8, "n_head": 2,
        ...           "vocab_size": 32, "n_positions": 16}
        >>> folder = tempfile.mkdtemp()
        >>> models.save(models.from_config(config), folder)
        >>> model = models.load(folder)
        >>> model(jnp.array([[1, 2, 3]])).shape
        (1, 3, 32)
    """
    path = _found(source)
    if path.is_dir():
        raw = _config_of(path) | _pooling(path)
        tensors = read_folder(path)
        tokenizer = Tokenizer.from_folder(path)
    else:
        raw, tensors, tokenizer = _read_gguf(path)
    if not any("pooler." in name for name in tensors):
        raw = raw | {"add_pooling_layer": False}  # sentence encoders are often stored without a pooler
    with reading(path, "its config"):
        architecture, config = read_config(raw)
    if kind is not None and not issubclass(architecture.module, kind):
        name = architecture.module.__name__
        raise ModelFileError(f"{path} is a {name} ({architecture.name}), and kind= asks for {kind.__name__}.")
    _check_layers(config, tensors, path)
    model = abstract(architecture, config, layers=layers, dtype=_dtype(dtype, tensors), tokenizer=tokenizer)
    fill(model, architecture, tensors, mesh=mesh, where=str(path))
    return model


def from_config(
    config: Mapping[str, Any],
    *,
    seed: int = 0,
    dtype: DTypeLike = jnp.float32,
    layers: Layers = "list",
    tokenizer: Tokenizer | None = None,
) -> Any:
    """A model with initial weights.

    Args:
        config: The contents of a checkpoint's `config.json`.
        seed: For the weights.
        dtype: The dtype of parameters and computations.
        layers: `"list"` or `"scan"`.
        tokenizer: For texts, if there is one.

    Returns:
        A model, as from `load`.

    Raises:
        ModelFileError: The architecture is not supported, or the config lacks an entry.

    Example:
        >>> from sonde import models
        >>> model = models.from_config({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 8,
        ...                     "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 32})
        >>> len(model.blocks)
        2
    """
    architecture, read = read_config(config)
    build: Any = architecture.module
    return build(read, layers=layers, rngs=nnx.Rngs(seed), dtype=dtype, tokenizer=tokenizer)


def _check_layers(config: Config | TowersConfig, tensors: Tensors, path: Path) -> None:
    """Raises ModelFileError if the config describes more layers than there can be: each would take memory first."""
    layers = number_of_layers(config)
    if layers > len(tensors):
        raise ModelFileError(f"{path} has a config with {layers} layers, but only {len(tensors)} tensors.")


def _found(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        return path
    if str(source).count("/") == 1 and not str(source).startswith((".", "/", "~")) and path.suffix != ".gguf":
        try:
            hub = _extras.load("huggingface_hub", extra="models", purpose=f"Asking the hub for {source!r}")
        except ModuleNotFoundError as error:
            raise FileNotFoundError(f"there is nothing at {source!r}. {error}") from error
        return Path(hub.snapshot_download(str(source), allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    raise FileNotFoundError(
        f"there is nothing at {str(source)!r}. Give a folder of Hugging Face files, a .gguf file, a name "
        "of the hub such as 'openai-community/gpt2', or models.path('smollm2')."
    )


def _config_of(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.exists():
        raise ModelFileError(f"{folder} has no config.json, which describes the model.")
    return read_json(path)


def _pooling(folder: Path) -> dict[str, Any]:
    """How vectors of sentences are made, if the folder of a sentence encoder specifies it."""
    beside = folder / "1_Pooling" / "config.json"
    if not beside.exists():
        return {}
    told = read_json(beside)
    names = {"pooling_mode_cls_token": "first", "pooling_mode_mean_tokens": "mean"}
    chosen = [ours for theirs, ours in names.items() if told.get(theirs)]
    return {"pooling": chosen[0]} if len(chosen) == 1 else {}


def _read_gguf(path: Path) -> tuple[dict[str, Any], Tensors, Tokenizer | None]:
    if path.suffix != ".gguf":
        raise ModelFileError(f"{path} is neither a folder nor a .gguf file.")
    from sonde.models.files import gguf

    return gguf.read_file(path)


def _dtype(asked: DTypeLike | None, tensors: Tensors) -> Any:
    """The dtype of the parameters: the requested one, or that of most numbers of the checkpoint."""
    if asked is not None:
        return jnp.dtype(asked)
    sizes: dict[np.dtype, int] = {}
    for tensor in tensors.values():
        if jnp.issubdtype(tensor.dtype, jnp.floating):
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.bytes
    return max(sizes, key=lambda dtype: sizes[dtype], default=np.dtype(np.float32))


__all__ = ["Architecture", "from_config", "load"]
