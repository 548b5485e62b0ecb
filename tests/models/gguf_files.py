"""GGUF files of the small models, as llama.cpp's converters write them.

Names come from the package `gguf`. What the converters change about the numbers is written down here once more, the
other way round than in `sonde.models`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tests.models.cases import weights

# The architecture of llama.cpp for every case of `cases.py` that there is one for.
ARCHITECTURES = {
    "llama": "LLAMA",
    "llama_biases_tied": "LLAMA",
    "llama_3": "LLAMA",
    "llama_linear": "LLAMA",
    "llama_yarn": "LLAMA",
    "qwen2": "QWEN2",
    "qwen3": "QWEN3",
    "gemma": "GEMMA",
    "gemma2": "GEMMA2",
    "gemma3": "GEMMA3",
    "gpt2": "GPT2",
    "gpt_neox": "GPTNEOX",
    "gpt_neox_in_turn": "GPTNEOX",
    "phi2": "PHI2",
    "phi3": "PHI3",
    "bert": "BERT",
    "roberta": "BERT",
}


def write_gguf(path: Path, case: str, stored: dict[str, Any], *, fused: bool = False) -> None:
    """Writes the file of a case.

    Args:
        path: where to.
        case: its name.
        stored: config and shapes, as `transformers` has them.
        fused: whether queries, keys and values are one tensor, as some converters write them.
    """
    config, arch = stored["config"], gguf.MODEL_ARCH[ARCHITECTURES[case]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _add_metadata(writer, config)
    names = gguf.get_tensor_name_map(arch, config.get("num_hidden_layers") or config["n_layer"])
    rows: dict[str, np.ndarray] = {}
    for theirs, shape in stored["tensors"].items():
        if "pooler" in theirs:
            continue
        stem, _, kind = theirs.removeprefix("bert.").removeprefix("roberta.").rpartition(".")
        name = names.get_name(stem)
        assert name is not None, theirs
        rows[f"{name}.{kind}"] = _changed(theirs, weights(theirs, tuple(shape)), config)
    if fused:
        rows = _fused(rows)
    for name, array in rows.items():
        writer.add_tensor(name, np.ascontiguousarray(array))
    for name, array in _factors(config).items():
        writer.add_tensor(name, np.asarray(array, np.float32))
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    model = config["model_type"]
    heads = config.get("num_attention_heads") or config["n_head"]
    width = config.get("hidden_size") or config["n_embd"]
    writer.add_block_count(config.get("num_hidden_layers") or config["n_layer"])
    writer.add_embedding_length(width)
    writer.add_head_count(heads)
    writer.add_feed_forward_length(config.get("intermediate_size") or 4 * width)
    offset = config["pad_token_id"] + 1 if model == "roberta" else 0
    writer.add_context_length((config.get("max_position_embeddings") or config["n_positions"]) - offset)
    if "num_key_value_heads" in config:
        writer.add_head_count_kv(config["num_key_value_heads"])
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["layer_norm_epsilon"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if "rope_theta" in config:
        writer.add_rope_freq_base(config["rope_theta"])
    if model == "gpt_neox":
        writer.add_parallel_residual(config["use_parallel_residual"])
    if model in ("gpt_neox", "phi", "phi3"):
        part = config["rotary_pct"] if model == "gpt_neox" else config["partial_rotary_factor"]
        writer.add_rope_dimension_count(int(part * (width // heads)))
    if model.startswith("gemma"):
        if model == "gemma2":
            writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        if model != "gemma":
            writer.add_sliding_window(config["sliding_window"])
            pattern = [kind == "sliding_attention" for kind in config["layer_types"]]
            writer.add_sliding_window_pattern(pattern)
        if model == "gemma3_text":
            writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    if model == "phi3":
        writer.add_sliding_window(0)
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
        writer.add_rope_scaling_factor(scaling["factor"])
        if "original_max_position_embeddings" in scaling:
            writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "beta_fast" in scaling:
            writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
    if model in ("bert", "roberta"):
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.CLS)


def _changed(theirs: str, array: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """What the converters make of a tensor."""
    model = config["model_type"]
    heads = config.get("num_attention_heads") or config["n_head"]
    if model == "llama" and (".q_proj." in theirs or ".k_proj." in theirs):
        count = heads if ".q_proj." in theirs else config["num_key_value_heads"]
        halves = array.reshape(count, 2, array.shape[0] // count // 2, *array.shape[1:])
        return np.moveaxis(halves, 1, 2).reshape(array.shape)
    if model.startswith("gemma") and theirs.endswith("norm.weight"):
        return array + 1
    if model == "gpt2" and theirs.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        return array.T
    if model == "gpt_neox" and "query_key_value" in theirs:
        by_head = array.reshape(heads, 3, -1, *array.shape[1:])
        return np.concatenate([by_head[:, i].reshape(-1, *array.shape[1:]) for i in range(3)])
    if model == "roberta" and "position_embeddings" in theirs:
        return array[config["pad_token_id"] + 1 :]
    return array


def _fused(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, array in rows.items():
        for part in "qkv":
            if f".attn_{part}." in name:
                if part == "q":
                    parts = [rows[name.replace("attn_q", f"attn_{other}")] for other in "qkv"]
                    found[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
                break
        else:
            found[name] = array
    return found


def _factors(config: dict[str, Any]) -> dict[str, Any]:
    """The tensors that say how frequencies are stretched."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("type") == "longrope":
        return {f"rope_factors_{kind}.weight": scaling[f"{kind}_factor"] for kind in ("long", "short")}
    if scaling.get("rope_type") != "llama3":
        return {}
    depth = config["head_dim"]
    wave = 2 * np.pi * config["rope_theta"] ** (np.arange(0, depth, 2) / depth)
    ratio = scaling["original_max_position_embeddings"] / wave
    smooth = np.clip(
        (ratio - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"]), 0, 1
    )
    return {"rope_freqs.weight": 1 / ((1 - smooth) / scaling["factor"] + smooth)}
