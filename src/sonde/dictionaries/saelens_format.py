"""Dictionaries on disk in the layout of SAELens: a folder with `cfg.json` and `sae_weights.safetensors`.

The arrays are called `W_enc`, `b_enc`, `W_dec`, `b_dec`; with thresholds `threshold`; if gated `b_gate`, `b_mag` and
`r_mag` in place of `b_enc`; for what skips the features `W_skip`. The architecture says what a dictionary reads and
writes. SAELens has no transcoders that keep the `k` largest features: a square one is saved as what it computes, a TopK
autoencoder that is not centered, with its kind under `metadata`; others as `topk_transcoder`, which SAELens refuses.
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
from sonde._atomic_files import replaced_file
from sonde.dictionaries.cross_layer import CrossLayerTranscoder
from sonde.dictionaries.crosscoder import Crosscoder
from sonde.dictionaries.dictionary import ACTIVATIONS, KINDS, Activation, Dictionary, Kind
from sonde.dictionaries.published_layouts import Stored, published
from sonde.errors import StoreError

_CROSSCODER = "crosscoder_"  # of Sonde alone: other libraries refuse the name
_NAMES: dict[tuple[Kind, Activation], str] = {
    ("autoencoder", "relu"): "standard",
    ("autoencoder", "topk"): "topk",
    ("autoencoder", "jumprelu"): "jumprelu",
    ("autoencoder", "gated"): "gated",
    ("transcoder", "relu"): "transcoder",
    ("transcoder", "topk"): "topk_transcoder",
    ("transcoder", "jumprelu"): "jumprelu_transcoder",
    ("transcoder", "gated"): "gated_transcoder",
    ("skip_transcoder", "relu"): "skip_transcoder",
    ("skip_transcoder", "topk"): "topk_skip_transcoder",
    ("skip_transcoder", "jumprelu"): "jumprelu_skip_transcoder",
    ("skip_transcoder", "gated"): "gated_skip_transcoder",
}
_KINDS: dict[str, tuple[Kind, Activation]] = {
    **{name: kind for kind, name in _NAMES.items()},
    **{_CROSSCODER + activation: ("autoencoder", activation) for activation in ACTIVATIONS},
    "relu": ("autoencoder", "relu"),
    "batchtopk": ("autoencoder", "jumprelu"),
    "matryoshka_batchtopk": ("autoencoder", "jumprelu"),
}
_WEIGHTS, _CONFIG, _KIND = "sae_weights.safetensors", "cfg.json", "sonde_kind"


def save(
    dictionary: Dictionary | CrossLayerTranscoder,
    folder: str | os.PathLike[str],
    *,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Writes a dictionary; a cross-layer transcoder as circuit-tracer lays it out.

    Args:
        dictionary: What to write.
        folder: The folder to write to; made if it is missing.
        metadata: Metadata to store, such as `{"model_name": ..., "hook_name": ...}`.
    """
    numpy = _extras.load("safetensors.numpy", extra="safetensors", purpose="A dictionary on disk")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    if isinstance(dictionary, CrossLayerTranscoder):
        _save_layers(dictionary, place, dict(metadata or {}), numpy)
        return
    # Batch TopK is trained by batches; what remains of it is a threshold.
    activation = "jumprelu" if dictionary.activation == "batchtopk" else dictionary.activation
    is_crosscoder = isinstance(dictionary, Crosscoder)
    architecture = _CROSSCODER + activation if is_crosscoder else _NAMES[dictionary.kind, activation]
    extra = dict(metadata or {})
    if architecture == "topk_transcoder" and dictionary.d_in == dictionary.d_out:
        architecture, extra = "topk", {**extra, _KIND: "transcoder"}
    arrays = {name: np.asarray(variable[...], np.float32) for name, variable in _variables(dictionary).items()}
    if activation == "jumprelu":
        arrays["threshold"] = np.broadcast_to(arrays["threshold"], (dictionary.n_features,)).copy()
    if "W_skip" in arrays:
        arrays["W_skip"] = np.ascontiguousarray(arrays["W_skip"].T)
    config = {
        "architecture": architecture,
        "d_in": dictionary.d_in,
        "d_sae": dictionary.n_features,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": dictionary.centered,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "metadata": extra,
    }
    if isinstance(dictionary, Crosscoder):
        config["sites"] = dictionary.sites
    if activation == "topk":
        config |= {"k": dictionary.k, "rescale_acts_by_decoder_norm": False}
    if dictionary.kind != "autoencoder":
        config["d_out"] = dictionary.d_out
    for name, write in (
        (_WEIGHTS, lambda file: numpy.save_file(arrays, str(file))),
        (_CONFIG, lambda file: file.write_text(json.dumps(config, indent=1))),
    ):
        with replaced_file(place / name) as file:
            write(file)


def load(folder: str | os.PathLike[str], *, kind: Kind | None = None) -> Dictionary:
    """Reads a dictionary of SAELens, Gemma Scope, Llama Scope or EleutherAI's `sparsify`, by the files in the folder.

    A cross-layer transcoder is read by `load_cross_layer`.

    Args:
        folder: The folder with the files.
        kind: What the dictionary reads and writes, where the files do not say it: those of Gemma Scope, which are taken
            for transcoders if a folder above them is called so.

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
    if kind is not None and kind not in KINDS:
        raise ValueError(f"load: kind= is one of {', '.join(KINDS)}, got {kind!r}")
    stored = published(place, kind, numpy)
    if stored is not None:
        return _dictionary(stored, place)
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
    said, activation = _kind(config, place)
    if config.get("normalize_activations", "none") not in ("none", None):
        raise StoreError(
            f"{str(place)!r} expects normalized inputs ({config['normalize_activations']}), which are not supported"
        )
    if "topk_threshold" in arrays:  # not finished: SAELens turns it into a JumpReLU at the end of training
        activation, arrays["threshold"] = "batchtopk", arrays.pop("topk_threshold")
    kwargs = config.get("activation_fn_kwargs")
    k = config.get("k", kwargs.get("k") if isinstance(kwargs, dict) else None)
    _check_sizes(config, said, arrays, place)
    centered = said == "autoencoder" and bool(config.get("apply_b_dec_to_input", True))
    said_k = k if activation in ("topk", "batchtopk") else None
    is_crosscoder = str(config.get("architecture")).startswith(_CROSSCODER)
    made = _dictionary(
        Stored(said, activation, said_k, centered, arrays), place, config.get("sites", 0) if is_crosscoder else None
    )
    if activation in ("topk", "batchtopk") and config.get("rescale_acts_by_decoder_norm", False):
        made.rescale()  # the largest features are those of a decoder with rows of length one
    return made


def _dictionary(stored: Stored, place: Path, sites: object = None) -> Dictionary:
    """A dictionary with the arrays of a file."""
    (d_in, n_features), (_, d_out) = stored.arrays["W_enc"].shape, stored.arrays["W_dec"].shape
    try:
        if sites is not None:
            if type(sites) is not int or sites < 1 or d_in % sites:
                raise ValueError(f"sites must divide the width {d_in}, but is {sites!r}")
            across = Crosscoder(
                d_in // sites, n_features, sites=sites, activation=stored.activation, k=stored.k, rngs=nnx.Rngs(0)
            )
            _fill(across, stored.arrays, place)
            return across
        made = Dictionary(
            d_in,
            n_features,
            activation=stored.activation,
            k=stored.k,
            kind=stored.kind,
            d_out=None if stored.kind == "autoencoder" else d_out,
            centered=stored.centered,
            rngs=nnx.Rngs(0),
        )
    except (ValueError, TypeError) as error:
        raise StoreError(f"{str(place)!r}: {error}") from error
    _fill(made, stored.arrays, place)
    return made


def _save_layers(dictionary: CrossLayerTranscoder, place: Path, metadata: dict[str, Any], numpy: Any) -> None:
    kinds = {part.activation for part in dictionary.parts}
    if not kinds <= {"relu", "jumprelu", "batchtopk"}:
        raise ValueError(f"save: a cross-layer transcoder on disk has ReLU or thresholds, this one has {sorted(kinds)}")
    biases = _biases_by_layer(dictionary)
    for i, part in enumerate(dictionary.parts):
        arrays = {"W_enc": np.asarray(part.encoder[...]).T, "b_enc": part.encoder_bias[...], "b_dec": biases[i]}
        if part.activation != "relu":
            arrays["threshold"] = np.broadcast_to(part.threshold[...], (part.n_features,))
        decoder = np.asarray(part.decoder[...]).reshape(part.n_features, dictionary.layers - i, -1)
        for name, found in ((f"W_enc_{i}", arrays), (f"W_dec_{i}", {"W_dec": decoder})):
            stored = {f"{key}_{i}": np.array(x, np.float32, order="C") for key, x in found.items()}
            with replaced_file(place / f"{name}.safetensors") as file:
                numpy.save_file(stored, str(file), metadata={key: str(value) for key, value in metadata.items()})


def _biases_by_layer(dictionary: CrossLayerTranscoder) -> list[np.ndarray]:
    """The sum of what the biases of all parts add to each layer."""
    total: list[Any] = [0] * dictionary.layers
    for i, part in enumerate(dictionary.parts):
        for j, bias in enumerate(np.split(np.asarray(part.decoder_bias[...]), dictionary.layers - i)):
            total[i + j] = total[i + j] + bias
    return total


def load_cross_layer(folder: str | os.PathLike[str]) -> CrossLayerTranscoder:
    """Reads a cross-layer transcoder that `save` or circuit-tracer has written: two files for each layer.

    Raises:
        FileNotFoundError: A file is missing.
        StoreError: Arrays are missing, or do not fit each other.
    """
    numpy = _extras.load("safetensors.numpy", extra="safetensors", purpose="A dictionary on disk")
    place = Path(folder)
    layers = len(list(place.glob("W_enc_*.safetensors")))
    files = [(place / f"W_enc_{i}.safetensors", place / f"W_dec_{i}.safetensors") for i in range(max(layers, 1))]
    stored: list[dict[str, np.ndarray]] = []
    for i, pair in enumerate(files):
        arrays: dict[str, np.ndarray] = {}
        for file in pair:
            if not file.is_file():
                raise FileNotFoundError(f"there is no {file.name} in {str(place)!r}")
            try:
                found = numpy.load_file(str(file))
            except Exception as error:
                raise StoreError(f"{str(file)!r} does not hold arrays ({type(error).__name__}: {error})") from error
            arrays |= {name.removesuffix(f"_{i}"): np.asarray(x, np.float32) for name, x in found.items()}
        stored.append(arrays)
        for name, axes in (("W_enc", 2), ("b_enc", 1), ("W_dec", 3), ("b_dec", 1)):
            if name not in arrays or arrays[name].ndim != axes:
                raise StoreError(f"{str(place)!r} has no array '{name}_{i}' with {axes} axes")
    features, d_in = stored[0]["W_enc"].shape
    d_out = stored[0]["W_dec"].shape[2]
    for i, arrays in enumerate(stored):
        expected = {"W_enc": (features, d_in), "b_enc": (features,), "W_dec": (features, layers - i, d_out)}
        expected |= {"b_dec": (d_out,), "threshold": (features,)}
        for name, shape in expected.items():
            if name in arrays and arrays[name].shape != shape:
                raise StoreError(f"{str(place)!r}: {name}_{i} has the shape {arrays[name].shape}, expected {shape}")
    activation = "jumprelu" if "threshold" in stored[0] else "relu"
    made = CrossLayerTranscoder(d_in, features, layers=layers, d_out=d_out, activation=activation, rngs=nnx.Rngs(0))
    for i, (part, arrays) in enumerate(zip(made.parts, stored)):
        part.encoder[...], part.encoder_bias[...] = jnp.asarray(arrays["W_enc"].T), jnp.asarray(arrays["b_enc"])
        part.decoder[...] = jnp.asarray(arrays["W_dec"].reshape(features, -1))
        # Each layer's bias is one, which the part of that layer adds.
        part.decoder_bias[...] = jnp.zeros(part.d_out).at[:d_out].set(arrays["b_dec"])
        if activation == "jumprelu":
            if "threshold" not in arrays:
                raise StoreError(f"{str(place)!r} has thresholds in layer 0 and none in layer {i}")
            part.threshold[...] = jnp.asarray(arrays["threshold"])
    return made


def _check_sizes(config: Mapping[str, Any], kind: Kind, arrays: Mapping[str, np.ndarray], place: Path) -> None:
    """Raises StoreError unless the configuration has the sizes of the arrays, before it takes memory."""
    for name in ("d_in", "d_sae", "d_out", "k"):
        value = config.get(name)
        if (value is None and name in ("d_in", "d_sae")) or (
            value is not None and (type(value) is not int or value < 1)
        ):
            raise StoreError(f"{str(place / _CONFIG)!r}: {name} must be a whole number above 0, but is {value!r}")
    d_in, d_sae = config["d_in"], config["d_sae"]
    d_out = d_in if kind == "autoencoder" else config.get("d_out") or d_in
    for name, said in (("W_enc", (d_in, d_sae)), ("W_dec", (d_sae, d_out))):
        if name not in arrays:
            raise StoreError(f"{str(place / _WEIGHTS)!r} has no array {name!r}; it has {', '.join(sorted(arrays))}")
        if arrays[name].shape != said:
            raise StoreError(f"{str(place)!r}: {name} has shape {arrays[name].shape}, the configuration says {said}")


def _kind(config: Mapping[str, Any], place: Path) -> tuple[Kind, Activation]:
    named = config.get("architecture", "standard")
    before = config.get("activation_fn_str", config.get("activation_fn"))
    if named == "standard" and before is not None and before != "relu":
        named = before  # as SAELens wrote it before version 6
    if not isinstance(named, str) or named not in _KINDS:
        raise StoreError(f"{str(place)!r} holds a dictionary of the kind {named!r}; known are {', '.join(_KINDS)}")
    kind, activation = _KINDS[named]
    if config.get("activation") in ("topk", "jumprelu"):
        activation = config["activation"]
    metadata = config.get("metadata")
    said = metadata.get(_KIND, kind) if isinstance(metadata, dict) else kind
    return (said if said in KINDS else kind), activation


def _variables(dictionary: Dictionary) -> dict[str, nnx.Variable]:
    """The arrays of a dictionary by their names in the file."""
    found = {"W_enc": dictionary.encoder, "W_dec": dictionary.decoder, "b_dec": dictionary.decoder_bias}
    if dictionary.activation == "gated":
        found |= {"b_mag": dictionary.encoder_bias, "b_gate": dictionary.gate_bias, "r_mag": dictionary.log_gain}
    else:
        found["b_enc"] = dictionary.encoder_bias
    if dictionary.activation in ("jumprelu", "batchtopk"):
        found["threshold"] = dictionary.threshold
    if dictionary.kind == "skip_transcoder":
        found["W_skip"] = dictionary.skip
    return found


def _fill(dictionary: Dictionary, arrays: Mapping[str, np.ndarray], place: Path) -> None:
    for name, variable in _variables(dictionary).items():
        if name not in arrays:
            raise StoreError(f"{str(place)!r} has no array {name!r}; it has {', '.join(sorted(arrays))}")
        stored = np.asarray(arrays[name], np.float32)
        stored = stored.T if name == "W_skip" else stored
        if stored.shape != variable.shape:
            raise StoreError(
                f"{str(place)!r}: {name} has shape {stored.shape}, the configuration says {variable.shape}"
            )
        variable[...] = jnp.asarray(stored)
