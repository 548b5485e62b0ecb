"""The metadata of GGUF files as the `config.json` of the same model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sonde.errors import ModelFileError
from sonde.models.files.tensors import Tensors
from sonde.models.files.untrusted import checked_config

Fields = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Form:
    """The names of an architecture of llama.cpp elsewhere.

    Attributes:
        name: Its class in `transformers`.
        model_type: Its `model_type` there.
        keys: Entries of the config, and the metadata they come from.
        turned: The entry with the fraction of a head that is rotated; None if all of it is.
    """

    name: str
    model_type: str
    keys: Mapping[str, str]
    turned: str | None = None


_SIZES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
}
_LLAMA = _SIZES | {
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
}
_GEMMA = _LLAMA | {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope_local_base_freq": "rope.freq_base_swa",
}
_LAYER_NORM = {"layer_norm_eps": "attention.layer_norm_epsilon"}
_NEOX = _SIZES | _LAYER_NORM | {"rotary_emb_base": "rope.freq_base", "use_parallel_residual": "use_parallel_residual"}
_PHI2 = _SIZES | _LAYER_NORM | {"rope_theta": "rope.freq_base", "num_key_value_heads": "attention.head_count_kv"}
_GPT2 = {
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_inner": "feed_forward_length",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
FORMS = {
    "llama": Form("LlamaForCausalLM", "llama", _LLAMA),
    "qwen2": Form("Qwen2ForCausalLM", "qwen2", _LLAMA),
    "qwen3": Form("Qwen3ForCausalLM", "qwen3", _LLAMA),
    "gemma": Form("GemmaForCausalLM", "gemma", _GEMMA),
    "gemma2": Form("Gemma2ForCausalLM", "gemma2", _GEMMA),
    "gemma3": Form("Gemma3ForCausalLM", "gemma3_text", _GEMMA),
    "phi2": Form("PhiForCausalLM", "phi", _PHI2, "partial_rotary_factor"),
    "phi3": Form("Phi3ForCausalLM", "phi3", _LLAMA, "partial_rotary_factor"),
    "gptneox": Form("GPTNeoXForCausalLM", "gpt_neox", _NEOX, "rotary_pct"),
    "gpt2": Form("GPT2LMHeadModel", "gpt2", _GPT2),
    "bert": Form("BertModel", "bert", _SIZES | _LAYER_NORM),
}
_STRETCHED = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context_length",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
}
_MOST_FACTORS = 1 << 16
_POOLINGS = {1: "mean", 2: "first"}


def config_of(fields: Fields, tensors: Tensors, where: str) -> dict[str, Any]:
    """The config of a file.

    Args:
        fields: Its metadata.
        tensors: Its tensors, by their names in the file.
        where: The file, for messages.

    Raises:
        ModelFileError: The architecture is not supported, or an entry is missing.
    """
    architecture = fields.get("general.architecture")
    if architecture not in FORMS:
        known = ", ".join(sorted(FORMS))
        raise ModelFileError(f"{where} has the unsupported architecture {architecture!r}. Supported: {known}.")
    form = FORMS[architecture]
    raw: dict[str, Any] = {"architectures": [form.name], "model_type": form.model_type}
    for ours, theirs in form.keys.items():
        if f"{architecture}.{theirs}" in fields:
            raw[ours] = fields[f"{architecture}.{theirs}"]
    if not raw.get("sliding_window"):
        raw["sliding_window"] = None  # zero positions mean no window
    raw = checked_config(raw)
    if "token_embd.weight" not in tensors:
        raise ModelFileError(f"{where} has no tensor token_embd.weight.")
    raw["vocab_size"] = tensors["token_embd.weight"].shape[0]
    raw["tie_word_embeddings"] = architecture in ("gpt2", "bert") or "output.weight" not in tensors
    for key in ("bos_token_id", "eos_token_id"):
        if f"tokenizer.ggml.{key}" in fields:
            raw[key] = fields[f"tokenizer.ggml.{key}"]
    turned = fields.get(f"{architecture}.rope.dimension_count")
    if form.turned and turned:
        raw[form.turned] = turned / (raw["hidden_size"] // raw["num_attention_heads"])
    return raw | _of_architecture(architecture, raw, fields, tensors) | _scaling(fields, tensors, architecture)


def _of_architecture(architecture: str, raw: dict[str, Any], fields: Fields, tensors: Tensors) -> dict[str, Any]:
    """Entries that follow from the tensors, or are not in a file at all."""
    match architecture:
        case "llama" | "qwen3" | "gemma" | "gemma2" | "gemma3":
            found = {
                "attention_bias": "blk.0.attn_q.bias" in tensors,
                "mlp_bias": "blk.0.ffn_up.bias" in tensors,
            }
            if architecture in ("gemma2", "gemma3"):
                found |= {"query_pre_attn_scalar": _query_scalar(raw, architecture)}
            return found | _layer_types(fields.get(f"{architecture}.attention.sliding_window_pattern"), raw)
        case "gptneox":
            return {"attention_bias": "blk.0.attn_qkv.bias" in tensors}
        case "bert":
            types, positions = (tensors.get(f"{name}.weight") for name in ("token_types", "position_embd"))
            return {
                "type_vocab_size": types.shape[0] if types else 0,
                "max_position_embeddings": positions.shape[0] if positions else 0,
                "pooling": _POOLINGS.get(fields.get("bert.pooling_type", 0)),
            }
        case _:
            return {}


def _layer_types(pattern: Any, raw: dict[str, Any]) -> dict[str, Any]:
    """Which layers see a window: all but every n-th, or as a list gives them."""
    if isinstance(pattern, int) and pattern:
        pattern = [bool((i + 1) % pattern) for i in range(raw["num_hidden_layers"])]
    if not pattern or raw["sliding_window"] is None:
        return {}
    return {"layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern]}


def _query_scalar(raw: dict[str, Any], architecture: str) -> float:
    """The number whose root divides the scores, which the file lacks: only the largest models differ."""
    largest = {"gemma2": 46, "gemma3": 62}[architecture]
    if raw["num_hidden_layers"] == largest:
        return raw["hidden_size"] / raw["num_attention_heads"]
    return raw.get("head_dim", 256)


def _factors(tensors: Tensors, name: str) -> list[float]:
    """One for each frequency."""
    if tensors[name].shape[0] > _MOST_FACTORS or len(tensors[name].shape) != 1:
        raise ModelFileError(f"{name} has the shape {tensors[name].shape}, not a factor for each frequency.")
    return tensors[name].read().tolist()


def _scaling(fields: Fields, tensors: Tensors, architecture: str) -> dict[str, Any]:
    """How rotary embeddings are stretched."""
    original = fields.get(f"{architecture}.rope.scaling.original_context_length")
    if "rope_factors_long.weight" in tensors:
        scaling = {
            "type": "longrope",
            "short_factor": _factors(tensors, "rope_factors_short.weight"),
            "long_factor": _factors(tensors, "rope_factors_long.weight"),
        }
        return {"rope_scaling": scaling, "original_max_position_embeddings": original}
    if "rope_freqs.weight" in tensors:
        # Llama 3's scaling, as a divisor per frequency.
        factors = _factors(tensors, "rope_freqs.weight")
        scaling = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
        return {"rope_scaling": scaling | {"factor": 1.0}}
    kind = fields.get(f"{architecture}.rope.scaling.type", "none")
    if kind in ("none", ""):
        return {}
    told = {ours: fields.get(f"{architecture}.rope.scaling.{theirs}") for ours, theirs in _STRETCHED.items()}
    return {"rope_scaling": {"rope_type": kind} | {name: value for name, value in told.items() if value is not None}}
