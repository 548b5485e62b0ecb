"""The metadata of GGUF files as the `config.json` of the same model."""

from __future__ import annotations

from typing import Any

from sonde.errors import ModelFileError
from sonde.models.files.tensors import Tensors

Fields = dict[str, Any]

_CLASSES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "gemma": ("GemmaForCausalLM", "gemma"),
    "gemma2": ("Gemma2ForCausalLM", "gemma2"),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text"),
    "phi3": ("Phi3ForCausalLM", "phi3"),
    "gpt2": ("GPT2LMHeadModel", "gpt2"),
}
_SIZES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GPT2_SIZES = {
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_inner": "feed_forward_length",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}


def config_of(fields: Fields, tensors: Tensors, where: str) -> dict[str, Any]:
    """The config of a file.

    Args:
        fields: its metadata.
        tensors: its tensors, under the names that they have there.
        where: the file, for messages.

    Raises:
        ModelFileError: the architecture is not known, or an entry is missing.
    """
    architecture = fields.get("general.architecture")
    if architecture not in _CLASSES:
        known = ", ".join(sorted(_CLASSES))
        raise ModelFileError(f"{where} is of the architecture {architecture!r}, which is not known. Known are {known}.")
    name, model_type = _CLASSES[architecture]
    sizes = _GPT2_SIZES if architecture == "gpt2" else _SIZES
    raw: dict[str, Any] = {"architectures": [name], "model_type": model_type}
    for ours, theirs in sizes.items():
        if f"{architecture}.{theirs}" in fields:
            raw[ours] = fields[f"{architecture}.{theirs}"]
    if "token_embd.weight" not in tensors:
        raise ModelFileError(f"{where} has no tensor token_embd.weight.")
    raw["vocab_size"] = tensors["token_embd.weight"].shape[0]
    raw["tie_word_embeddings"] = architecture == "gpt2" or "output.weight" not in tensors
    for key in ("bos_token_id", "eos_token_id"):
        if f"tokenizer.ggml.{key}" in fields:
            raw[key] = fields[f"tokenizer.ggml.{key}"]
    if architecture != "gpt2":
        raw["attention_bias"] = "blk.0.attn_q.bias" in tensors and architecture != "qwen2"
        raw |= _scaling(fields, tensors, architecture)
    if architecture in ("gemma2", "gemma3"):
        raw["query_pre_attn_scalar"] = _query_scalar(raw, architecture)
    return raw


def _query_scalar(raw: dict[str, Any], architecture: str) -> float:
    """What scores are divided by the root of, which the file does not say: only the largest models differ."""
    largest = {"gemma2": 46, "gemma3": 62}[architecture]
    if raw["num_hidden_layers"] == largest:
        return raw["hidden_size"] / raw["num_attention_heads"]
    return raw.get("head_dim", 256)


def _scaling(fields: Fields, tensors: Tensors, architecture: str) -> dict[str, Any]:
    """How rotary embeddings are stretched."""
    if "rope_factors_long.weight" in tensors:
        scaling = {
            "type": "longrope",
            "short_factor": tensors["rope_factors_short.weight"].read().tolist(),
            "long_factor": tensors["rope_factors_long.weight"].read().tolist(),
        }
        original = fields.get(f"{architecture}.rope.scaling.original_context_length")
        return {"rope_scaling": scaling, "original_max_position_embeddings": original}
    if "rope_freqs.weight" in tensors:
        # Llama 3's own stretching, as the divisor of every frequency.
        factors = tensors["rope_freqs.weight"].read().tolist()
        scaling = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
        return {"rope_scaling": scaling}
    kind = fields.get(f"{architecture}.rope.scaling.type", "none")
    if kind in ("none", ""):
        return {}
    scaling = {"rope_type": kind, "factor": fields.get(f"{architecture}.rope.scaling.factor", 1.0)}
    original = fields.get(f"{architecture}.rope.scaling.original_context_length")
    return {"rope_scaling": scaling | ({"original_max_position_embeddings": original} if original else {})}
