"""Dictionaries as others publish them, against their formulas written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from sonde import dictionaries
from sonde.errors import StoreError

D_IN, FEATURES = 6, 16


def arrays(*names: str, seed: int = 0) -> dict[str, np.ndarray]:
    shapes = {
        "W_enc": (D_IN, FEATURES), "W_dec": (FEATURES, D_IN), "b_enc": (FEATURES,), "b_dec": (D_IN,),
        "threshold": (FEATURES,), "skip": (D_IN, D_IN), "encoder.weight": (FEATURES, D_IN),
        "encoder.bias": (FEATURES,), "decoder.weight": (D_IN, FEATURES), "decoder.bias": (D_IN,),
    }  # fmt: skip
    rng = np.random.default_rng(seed)
    made = {name: rng.normal(size=shapes[name]).astype(np.float32) for name in names}
    return made | {"threshold": np.abs(made["threshold"])} if "threshold" in made else made


X = np.random.default_rng(9).normal(size=(20, D_IN)).astype(np.float32)


def agrees(found: dictionaries.Dictionary, features: Any, output: Any) -> None:
    assert 0 < (np.asarray(features) > 0).mean() < 1
    np.testing.assert_allclose(found.encode(X), features, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found(X), output, rtol=1e-4, atol=1e-4)


def test_gemma_scope(tmp_path: Path) -> None:
    stored = arrays("W_enc", "W_dec", "b_enc", "b_dec", "threshold")
    np.savez(tmp_path / "params.npz", **stored)
    before = X @ stored["W_enc"] + stored["b_enc"]
    features = before * (before > stored["threshold"])
    found = dictionaries.load(tmp_path)
    assert (found.kind, found.activation) == ("autoencoder", "jumprelu")
    agrees(found, features, features @ stored["W_dec"] + stored["b_dec"])
    assert dictionaries.load(tmp_path, kind="transcoder").kind == "transcoder"
    place = tmp_path / "gemma-scope-2b-pt-transcoders" / "layer_3"
    place.mkdir(parents=True)
    np.savez(place / "params.npz", **stored)
    assert dictionaries.load(place).kind == "transcoder"


def test_gemma_scope_of_gemma_3(tmp_path: Path) -> None:
    stored = arrays("W_enc", "W_dec", "b_enc", "b_dec", "threshold", "skip")
    skip = stored.pop("skip")
    renamed = {name.replace("W_", "w_"): x for name, x in stored.items()} | {"affine_skip_connection": skip}
    save_file(renamed, tmp_path / "params.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "jump_relu", "affine_connection": True}))
    before = X @ stored["W_enc"] + stored["b_enc"]
    features = before * (before > stored["threshold"])
    found = dictionaries.load(tmp_path)
    assert found.kind == "skip_transcoder"
    agrees(found, features, features @ stored["W_dec"] + stored["b_dec"] + X @ skip)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "matching_pursuit"}))
    with pytest.raises(StoreError, match="known is 'jump_relu'"):
        dictionaries.load(tmp_path)


@pytest.mark.parametrize("out", ["blocks.8.hook_resid_post", "blocks.8.hook_mlp_out"])
def test_llama_scope(tmp_path: Path, out: str) -> None:
    stored = arrays("encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias")
    stored["decoder.weight"] /= np.linalg.norm(stored["decoder.weight"], axis=0)
    (tmp_path / "checkpoints").mkdir()
    save_file(stored, tmp_path / "checkpoints" / "final.safetensors")
    lengths = {"in": 6.3125, "out": 3.390625}
    config = {
        "d_model": D_IN, "d_sae": FEATURES, "act_fn": "jumprelu", "jump_relu_threshold": 0.2, "top_k": 5,
        "norm_activation": "dataset-wise", "dataset_average_activation_norm": lengths,
        "hook_point_in": "blocks.8.hook_resid_post", "hook_point_out": out, "sparsity_include_decoder_norm": True,
    }  # fmt: skip
    (tmp_path / "hyperparams.json").write_text(json.dumps(config))
    into, from_ = (D_IN**0.5 / length for length in lengths.values())
    before = into * X @ stored["encoder.weight"].T + stored["encoder.bias"]
    # The threshold is for features of the value as the model has it, whose rows are 1 / from_ long.
    features = before * (before / from_ > 0.2)
    found = dictionaries.load(tmp_path)
    assert found.kind == ("autoencoder" if out.endswith("post") else "transcoder")
    agrees(found, features, (features @ stored["decoder.weight"].T + stored["decoder.bias"]) / from_)


@pytest.mark.parametrize("kind", ["autoencoder", "transcoder", "skip_transcoder"])
def test_sparsify(tmp_path: Path, kind: str) -> None:
    stored = arrays("encoder.weight", "encoder.bias", "W_dec", "b_dec", "skip")
    skip = stored.pop("skip")
    if kind == "skip_transcoder":
        stored["W_skip"] = skip
    save_file(stored, tmp_path / "sae.safetensors")
    config = {"d_in": D_IN, "k": 3, "expansion_factor": 32, "num_latents": FEATURES, "normalize_decoder": True}
    config |= {"transcode": kind != "autoencoder", "skip_connection": kind == "skip_transcoder", "activation": "topk"}
    (tmp_path / "cfg.json").write_text(json.dumps(config))
    before = (X - stored["b_dec"] if kind == "autoencoder" else X) @ stored["encoder.weight"].T + stored["encoder.bias"]
    values, indices = jax.lax.top_k(jax.nn.relu(before), 3)
    features = jnp.zeros_like(before).at[jnp.arange(len(X))[:, None], indices].set(values)
    found = dictionaries.load(tmp_path)
    assert found.kind == kind
    output = features @ stored["W_dec"] + stored["b_dec"]
    agrees(found, features, output + X @ skip.T if kind == "skip_transcoder" else output)
    for wrong in ({"signed": True}, {"activation": "groupmax"}):
        (tmp_path / "cfg.json").write_text(json.dumps(config | wrong))
        with pytest.raises(StoreError, match="known is 'topk'"):
            dictionaries.load(tmp_path)


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    stored = arrays("W_enc", "W_dec", "b_enc", "b_dec")
    np.savez(tmp_path / "params.npz", **stored)
    with pytest.raises(StoreError, match="has no array 'threshold'"):
        dictionaries.load(tmp_path)
    (tmp_path / "params.npz").write_bytes(b"PK\x03\x04 nothing")
    with pytest.raises(StoreError, match="does not hold a dictionary"):
        dictionaries.load(tmp_path)
    np.savez(tmp_path / "params.npz", **stored, threshold=np.ones(3, np.float32))
    with pytest.raises(StoreError, match="threshold has shape"):
        dictionaries.load(tmp_path)
    with pytest.raises(ValueError, match="kind= is one of"):
        dictionaries.load(tmp_path, kind="encoder")
