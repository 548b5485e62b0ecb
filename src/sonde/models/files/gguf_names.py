"""The names of tensors in GGUF files, and how llama.cpp rearranged their numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

Change = Callable[[np.ndarray], np.ndarray]

_LAYER = "model.layers.{i}"
_LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{i}.attn_norm": f"{_LAYER}.input_layernorm",
    "blk.{i}.attn_q": f"{_LAYER}.self_attn.q_proj",
    "blk.{i}.attn_k": f"{_LAYER}.self_attn.k_proj",
    "blk.{i}.attn_v": f"{_LAYER}.self_attn.v_proj",
    "blk.{i}.attn_output": f"{_LAYER}.self_attn.o_proj",
    "blk.{i}.attn_q_norm": f"{_LAYER}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": f"{_LAYER}.self_attn.k_norm",
    "blk.{i}.ffn_norm": f"{_LAYER}.post_attention_layernorm",
    "blk.{i}.ffn_gate": f"{_LAYER}.mlp.gate_proj",
    "blk.{i}.ffn_up": f"{_LAYER}.mlp.up_proj",
    "blk.{i}.ffn_down": f"{_LAYER}.mlp.down_proj",
}
_SANDWICH = _LLAMA | {
    "blk.{i}.post_attention_norm": f"{_LAYER}.post_attention_layernorm",
    "blk.{i}.ffn_norm": f"{_LAYER}.pre_feedforward_layernorm",
    "blk.{i}.post_ffw_norm": f"{_LAYER}.post_feedforward_layernorm",
}
_PHI3 = _LLAMA | {
    "blk.{i}.attn_qkv": f"{_LAYER}.self_attn.qkv_proj",
    "blk.{i}.ffn_up": f"{_LAYER}.mlp.gate_up_proj",
}
_PHI2 = _LLAMA | {
    "output_norm": "model.final_layernorm",
    "blk.{i}.attn_output": f"{_LAYER}.self_attn.dense",
    "blk.{i}.ffn_up": f"{_LAYER}.mlp.fc1",
    "blk.{i}.ffn_down": f"{_LAYER}.mlp.fc2",
}
_GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{i}.attn_norm": "transformer.h.{i}.ln_1",
    "blk.{i}.attn_qkv": "transformer.h.{i}.attn.c_attn",
    "blk.{i}.attn_output": "transformer.h.{i}.attn.c_proj",
    "blk.{i}.ffn_norm": "transformer.h.{i}.ln_2",
    "blk.{i}.ffn_up": "transformer.h.{i}.mlp.c_fc",
    "blk.{i}.ffn_down": "transformer.h.{i}.mlp.c_proj",
}
_NEOX = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    "blk.{i}.attn_norm": "gpt_neox.layers.{i}.input_layernorm",
    "blk.{i}.attn_qkv": "gpt_neox.layers.{i}.attention.query_key_value",
    "blk.{i}.attn_output": "gpt_neox.layers.{i}.attention.dense",
    "blk.{i}.ffn_norm": "gpt_neox.layers.{i}.post_attention_layernorm",
    "blk.{i}.ffn_up": "gpt_neox.layers.{i}.mlp.dense_h_to_4h",
    "blk.{i}.ffn_down": "gpt_neox.layers.{i}.mlp.dense_4h_to_h",
}
_BERT = {
    "token_embd": "bert.embeddings.word_embeddings",
    "token_types": "bert.embeddings.token_type_embeddings",
    "position_embd": "bert.embeddings.position_embeddings",
    "token_embd_norm": "bert.embeddings.LayerNorm",
    "blk.{i}.attn_q": "bert.encoder.layer.{i}.attention.self.query",
    "blk.{i}.attn_k": "bert.encoder.layer.{i}.attention.self.key",
    "blk.{i}.attn_v": "bert.encoder.layer.{i}.attention.self.value",
    "blk.{i}.attn_output": "bert.encoder.layer.{i}.attention.output.dense",
    "blk.{i}.attn_output_norm": "bert.encoder.layer.{i}.attention.output.LayerNorm",
    "blk.{i}.ffn_up": "bert.encoder.layer.{i}.intermediate.dense",
    "blk.{i}.ffn_down": "bert.encoder.layer.{i}.output.dense",
    "blk.{i}.layer_output_norm": "bert.encoder.layer.{i}.output.LayerNorm",
}
_TABLES = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": _SANDWICH,
    "gemma3": _SANDWICH,
    "phi2": _PHI2,
    "phi3": _PHI3,
    "gpt2": _GPT2,
    "gptneox": _NEOX,
    "bert": _BERT,
}
# Tensors that are read into the config and are not parameters.
_FACTORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")


def names_of(architecture: str) -> Callable[[str], str | None]:
    """A function from names in the file to names in a Hugging Face folder; None for tensors that are not parameters."""
    table = _TABLES[architecture]

    def name(theirs: str) -> str | None:
        stem, _, kind = theirs.rpartition(".")
        if stem in _FACTORS:
            return None
        layer = re.match(r"blk\.(\d+)\.", stem)
        known = table.get(re.sub(r"^blk\.\d+\.", "blk.{i}.", stem))
        if known is None:
            return theirs  # so that the error names it as surplus
        return f"{known.replace('{i}', layer[1]) if layer else known}.{kind}"

    return name


def parts_of(architecture: str, name: str, raw: dict[str, Any]) -> dict[str, slice]:
    """The parts of a tensor that are separate tensors in a Hugging Face folder: their names and rows.

    Files may have queries, keys and values in one tensor where folders have three.
    """
    if not re.search(r"\.attn_qkv\.", name) or "blk.{i}.attn_q" not in _TABLES[architecture] or architecture == "phi3":
        return {name: slice(None)}
    heads = raw["num_attention_heads"]
    depth = raw.get("head_dim") or raw["hidden_size"] // heads
    ends = np.cumsum([0, heads, *[raw.get("num_key_value_heads", heads)] * 2]) * depth
    return {name.replace("attn_qkv", f"attn_{part}"): slice(*ends[i : i + 2]) for i, part in enumerate("qkv")}


def changes_of(architecture: str, raw: dict[str, Any]) -> Callable[[str], Change | None]:
    """A function from names to a function that undoes llama.cpp's rearrangement, or None."""

    def change(name: str) -> Change | None:
        if architecture == "llama" and re.search(r"self_attn\.[qk]_proj\.", name):
            which = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
            return lambda x: _paired_apart(x, raw.get(which, raw["num_attention_heads"]))
        if architecture.startswith("gemma") and "norm" in name:
            return lambda x: x - 1
        if architecture == "gpt2" and re.search(r"\.c_(attn|proj|fc)\.weight$", name):
            return lambda x: x.T
        if architecture == "gptneox" and ".query_key_value." in name:
            return lambda x: _by_heads(x, raw["num_attention_heads"])
        return None

    return change


def _paired_apart(x: np.ndarray, heads: int) -> np.ndarray:
    """Reorders the features of a head so that the first half is paired with the second, not neighbors."""
    return x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def _by_heads(x: np.ndarray, heads: int) -> np.ndarray:
    """Interleaves queries, keys and values head by head, from all queries, all keys, all values."""
    return x.reshape(3, heads, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


__all__ = ["changes_of", "names_of", "parts_of"]
