"""Dictionaries on disk in the layout of SAELens: a folder with `cfg.json` and `sae_weights.safetensors`.

The arrays are called `W_enc`, `b_enc`, `W_dec`, `b_dec` and, if features have thresholds, `threshold`. The rest of the
configuration (which model and site the dictionary belongs to) is kept under `metadata`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde import _extras, nnx
from sonde._replacing import replaced_file
from sonde.dictionaries.dictionary import Dictionary
from sonde.errors import StoreError

_NAMES = {"relu": "standard", "topk": "topk", "jumprelu": "jumprelu"}
_ACTIVATIONS = {"standard": "relu", "relu": "relu", "topk": "topk", "jumprelu": "jumprelu", "batchtopk": "jumprelu"}
_WEIGHTS, _CONFIG = "sae_weights.safetensors", "cfg.json"


def save(dictionary: Dictionary, folder: str | os.PathLike[str], *, metadata: Mapping[str, Any] | None = None) -> None:
    """Writes a dictionary.

    Args:
        dictionary: What to write.
        folder: The folder to write to; made if it is missing.
        metadata: Metadata to store, such as `{"model_name": ..., "hook_name": ...}`.
    """
    numpy = _extras.load("safetensors.numpy", extra="safetensors", purpose="A dictionary on disk")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    arrays = {
        "W_enc": dictionary.encoder[...],
        "b_enc": dictionary.encoder_bias[...],
        "W_dec": dictionary.decoder[...],
        "b_dec": dictionary.decoder_bias[...],
    }
    if dictionary.activation == "jumprelu":
        arrays["threshold"] = dictionary.threshold
    config = {
        "architecture": _NAMES[dictionary.activation],
        "d_in": dictionary.d_in,
        "d_sae": dictionary.n_features,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": dictionary.centred,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": dict(metadata or {}),
    }
    if dictionary.k is not None:
        config["k"] = dictionary.k
    if dictionary.d_out != dictionary.d_in:
        config |= {"architecture": "transcoder", "d_out": dictionary.d_out, "activation": dictionary.activation}
    for name, write in (
        (_WEIGHTS, lambda file: numpy.save_file({n: np.array(x, np.float32) for n, x in arrays.items()}, str(file))),
        (_CONFIG, lambda file: file.write_text(json.dumps(config, indent=1))),
    ):
        with replaced_file(place / name) as file:
            write(file)


def load(folder: str | os.PathLike[str]) -> Dictionary:
    """Reads a dictionary.

    Raises:
        FileNotFoundError: A file is missing.
        StoreError: The dictionary is of an unknown kind, or its arrays do not fit its configuration.

    Example:
        >>> import tempfile
        >>> from sonde import dictionaries, nnx
        >>> folder = tempfile.mkdtemp()
        >>> dictionaries.save(dictionaries.Dictionary(4, 8, rngs=nnx.Rngs(0)), folder)
        >>> dictionaries.load(folder).encoder.shape
        (4, 8)
    """
    numpy = _extras.load("safetensors.numpy", extra="safetensors", purpose="A dictionary on disk")
    place = Path(folder)
    for name in (_CONFIG, _WEIGHTS):
        if not (place / name).is_file():
            raise FileNotFoundError(f"there is no {name} in {str(place)!r}")
    try:
        config = json.loads((place / _CONFIG).read_text())
        if not isinstance(config, dict):
            raise TypeError(f"{_CONFIG} holds a {type(config).__name__}, not an object")
        arrays = numpy.load_file(str(place / _WEIGHTS))
    except Exception as error:
        raise StoreError(f"{str(place)!r} does not hold a dictionary ({type(error).__name__}: {error})") from error
    activation = _activation(config, place)
    if config.get("normalize_activations", "none") not in ("none", None):
        raise StoreError(
            f"{str(place)!r} expects normalised inputs ({config['normalize_activations']}), which are not supported"
        )
    kwargs = config.get("activation_fn_kwargs")
    k = config.get("k", kwargs.get("k") if isinstance(kwargs, dict) else None) if activation == "topk" else None
    _check_sizes(config, arrays, place)
    try:
        made = Dictionary(
            config["d_in"],
            config["d_sae"],
            activation=activation,
            k=k,
            d_out=config.get("d_out"),
            centred=config.get("d_out") is None and bool(config.get("apply_b_dec_to_input", False)),
            rngs=nnx.Rngs(0),
        )
    except (ValueError, TypeError) as error:
        raise StoreError(f"{str(place / _CONFIG)!r}: {error}") from error
    _fill(made, arrays, place)
    return made


def _check_sizes(config: Mapping[str, Any], arrays: Mapping[str, np.ndarray], place: Path) -> None:
    """Raises StoreError unless the configuration has the sizes of the arrays, before it takes memory."""
    for name in ("d_in", "d_sae", "d_out", "k"):
        value = config.get(name)
        if (value is None and name in ("d_in", "d_sae")) or (
            value is not None and (type(value) is not int or value < 1)
        ):
            raise StoreError(f"{str(place / _CONFIG)!r}: {name} must be a whole number above 0, but is {value!r}")
    d_in, d_sae = config["d_in"], config["d_sae"]
    for name, said in (("W_enc", (d_in, d_sae)), ("W_dec", (d_sae, config.get("d_out") or d_in))):
        if name not in arrays:
            raise StoreError(f"{str(place / _WEIGHTS)!r} has no array {name!r}; it has {', '.join(sorted(arrays))}")
        if arrays[name].shape != said:
            raise StoreError(f"{str(place)!r}: {name} has shape {arrays[name].shape}, the configuration says {said}")


def _activation(config: Mapping[str, Any], place: Path) -> Any:
    named = config.get("activation", config.get("architecture", "standard"))
    if named == "standard" and config.get("activation_fn_str", config.get("activation_fn")) in ("topk", "tanh-relu"):
        named = config.get("activation_fn_str", config.get("activation_fn"))
    if not isinstance(named, str) or named not in _ACTIVATIONS:
        raise StoreError(
            f"{str(place)!r} holds a dictionary of the kind {named!r}; known are {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[named]


def _fill(dictionary: Dictionary, arrays: Mapping[str, np.ndarray], place: Path) -> None:
    places = {
        "W_enc": dictionary.encoder,
        "b_enc": dictionary.encoder_bias,
        "W_dec": dictionary.decoder,
        "b_dec": dictionary.decoder_bias,
    }
    if dictionary.activation == "jumprelu":
        places["threshold"] = dictionary.log_threshold
    for name, variable in places.items():
        if name not in arrays:
            raise StoreError(f"{str(place / _WEIGHTS)!r} has no array {name!r}; it has {', '.join(sorted(arrays))}")
        found = np.asarray(arrays[name], np.float32)
        if found.shape != variable.shape:
            raise StoreError(f"{str(place)!r}: {name} has shape {found.shape}, the configuration says {variable.shape}")
        variable[...] = jnp.log(jnp.maximum(found, 1e-30)) if name == "threshold" else jnp.asarray(found)
