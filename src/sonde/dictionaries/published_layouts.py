"""Dictionaries in the layouts in which Gemma Scope, Llama Scope and EleutherAI have published theirs.

    Gemma Scope    params.npz; Gemma Scope 2: params.safetensors and config.json
    Llama Scope    hyperparams.json and checkpoints/final.safetensors
    EleutherAI     cfg.json and sae.safetensors, as the package `sparsify` writes them

Each becomes what SAELens' layout would hold. Llama Scope divides inputs and outputs by their mean length in a data set;
here the factors are part of the weights, so that inputs stay as the model has them. A configuration that computes
something else is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from sonde.dictionaries.dictionary import Activation, Kind
from sonde.errors import StoreError

Arrays = dict[str, np.ndarray]


class Stored(NamedTuple):
    """A dictionary as it is on disk.

    Attributes:
        kind: What it reads and writes.
        activation: Which features are active.
        k: How many, for `"topk"`.
        centered: Whether the decoder's bias is subtracted from the input.
        arrays: The arrays by the names of SAELens.
    """

    kind: Kind
    activation: Activation
    k: int | None
    centered: bool
    arrays: Arrays


def published(place: Path, kind: Kind | None, safetensors: ModuleType) -> Stored | None:
    """What a folder holds in one of these layouts; None if it is in none of them.

    Args:
        place: The folder.
        kind: What the dictionary reads and writes, if the files do not say it.
        safetensors: The package that reads safetensors.

    Raises:
        StoreError: A file is damaged, or asks for what dictionaries do not compute.
    """
    for name, read in (
        ("params.npz", _gemma_scope),
        ("params.safetensors", _gemma_scope),
        ("hyperparams.json", _llama_scope),
        ("sae.safetensors", _sparsify),
    ):
        if (place / name).is_file():
            try:
                return read(place, kind, safetensors)
            except (OSError, StoreError):
                raise
            except Exception as error:
                raise StoreError(
                    f"{str(place)!r} does not hold a dictionary ({type(error).__name__}: {error})"
                ) from error
    return None


def _gemma_scope(place: Path, kind: Kind | None, safetensors: ModuleType) -> Stored:
    zipped = place / "params.npz"
    if zipped.is_file():
        with zipped.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            read = {name: file[name] for name in file.files}
    else:
        read = safetensors.load_file(str(place / "params.safetensors"))
    arrays = {f"W_{name[2:]}" if name.startswith("w_") else name: np.asarray(x, np.float32) for name, x in read.items()}
    config = _configuration(place / "config.json") if (place / "config.json").is_file() else {}
    architecture = config.get("architecture", "jump_relu")
    if architecture != "jump_relu":
        raise StoreError(f"{str(place)!r}: the architecture is {architecture!r}; known is 'jump_relu'")
    skip = arrays.pop("affine_skip_connection", None)
    if skip is not None:
        arrays["W_skip"] = np.ascontiguousarray(skip.T)
    # The arrays of autoencoders and transcoders are alike; the folders of the latter are called so.
    named = "transcoder" if any("transcoder" in part for part in place.resolve().parts) else "autoencoder"
    found: Kind = "skip_transcoder" if skip is not None else kind or named
    scale = arrays.pop("scaling_factor", np.ones(1, np.float32))
    if not np.allclose(scale, 1):
        raise StoreError(f"{str(place)!r} scales its features once more (scaling_factor), which is not supported")
    return Stored(found, "jumprelu", None, False, _needed(arrays, place, "threshold"))


def _llama_scope(place: Path, kind: Kind | None, safetensors: ModuleType) -> Stored:
    config = _configuration(place / "hyperparams.json")
    activation = config.get("act_fn", "jumprelu")
    normed, lengths = config.get("norm_activation", "dataset-wise"), config.get("dataset_average_activation_norm")
    if activation not in ("jumprelu", "relu", "topk") or normed not in ("dataset-wise", "inference", None):
        raise StoreError(
            f"{str(place)!r}: act_fn is {activation!r} and norm_activation {normed!r}; known are jumprelu, relu and "
            "topk, with 'dataset-wise'"
        )
    if config.get("use_glu_encoder") or config.get("apply_decoder_bias_to_pre_encoder"):
        raise StoreError(f"{str(place)!r} has a gated encoder, or subtracts its decoder's bias: not supported")
    read = safetensors.load_file(str(place / "checkpoints" / "final.safetensors"))
    arrays = _linear(read, place)
    width, width_out = arrays["W_enc"].shape[0], arrays["W_dec"].shape[1]
    into, out = (
        math.sqrt(size) / float(lengths[side]) if normed == "dataset-wise" and lengths else 1.0
        for size, side in ((width, "in"), (width_out, "out"))
    )
    arrays["W_enc"] = arrays["W_enc"] * into
    arrays["W_dec"], arrays["b_dec"] = arrays["W_dec"] / out, arrays["b_dec"] / out
    if activation == "jumprelu":
        # The threshold is for features as long as their decoder row.
        rows = np.linalg.norm(arrays["W_dec"], axis=1) if config.get("sparsity_include_decoder_norm", True) else 1.0
        arrays["threshold"] = np.broadcast_to(
            np.float32(config["jump_relu_threshold"]) / np.maximum(rows, 1e-8), arrays["b_enc"].shape
        ).astype(np.float32)
    between = config.get("hook_point_in") != config.get("hook_point_out")
    found = kind or ("transcoder" if between else "autoencoder")
    return Stored(found, activation, config.get("top_k") if activation == "topk" else None, False, arrays)


def _sparsify(place: Path, kind: Kind | None, safetensors: ModuleType) -> Stored:
    config = _configuration(place / "cfg.json")
    if config.get("signed") or config.get("activation", "topk") != "topk":
        raise StoreError(
            f"{str(place)!r}: features are chosen by {config.get('activation', 'topk')!r}, signed: "
            f"{bool(config.get('signed'))}; known is 'topk' of positive ones"
        )
    read = safetensors.load_file(str(place / "sae.safetensors"))
    arrays = _linear({"decoder.bias": read.pop("b_dec", None), **read}, place)
    if "W_skip" in read:
        arrays["W_skip"] = np.asarray(read["W_skip"], np.float32)
    skips, transcodes = "W_skip" in arrays, bool(config.get("transcode") or config.get("skip_connection"))
    found: Kind = "skip_transcoder" if skips else kind or ("transcoder" if transcodes else "autoencoder")
    return Stored(found, "topk", config["k"], not transcodes, arrays)


def _linear(read: Mapping[str, Any], place: Path) -> Arrays:
    """The arrays of two linear layers of PyTorch, outputs by inputs, or with `W_dec` as features by outputs."""
    arrays = {}
    for name, key in (("W_enc", "encoder.weight"), ("b_enc", "encoder.bias"), ("b_dec", "decoder.bias")):
        if read.get(key) is None:
            raise StoreError(f"{str(place)!r} has no array {key!r}; it has {', '.join(sorted(read))}")
        arrays[name] = np.asarray(read[key], np.float32).T
    decoder = read["W_dec"] if "W_dec" in read else np.asarray(read["decoder.weight"]).T
    arrays["W_dec"] = np.asarray(decoder, np.float32)
    return _needed(arrays, place)


def _needed(arrays: Arrays, place: Path, *more: str) -> Arrays:
    """The arrays, if none is missing and their shapes fit."""
    missing = [name for name in ("W_enc", "b_enc", "W_dec", "b_dec", *more) if name not in arrays]
    if missing:
        raise StoreError(f"{str(place)!r} has no array {missing[0]!r}; it has {', '.join(sorted(arrays))}")
    if arrays["W_enc"].ndim != 2 or arrays["W_dec"].ndim != 2:
        raise StoreError(f"{str(place)!r}: encoder and decoder are matrices, got {arrays['W_enc'].shape} and so on")
    return {name: np.ascontiguousarray(x) for name, x in arrays.items()}


def _configuration(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text())
    except ValueError as error:
        raise StoreError(f"{str(file)!r} is not JSON ({error})") from error
    if not isinstance(config, dict):
        raise StoreError(f"{str(file)!r} holds a {type(config).__name__}, not an object")
    return config
