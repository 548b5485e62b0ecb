"""The names of tensors in GGUF files, and what llama.cpp changed about the numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

Change = Callable[[np.ndarray], np.ndarray]

_LLAMA = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{i}.attn_norm": "model.layers.{i}.input_layernorm",
    "blk.{i}.attn_q": "model.layers.{i}.self_attn.q_proj",
    "blk.{i}.attn_k": "model.layers.{i}.self_attn.k_proj",
    "blk.{i}.attn_v": "model.layers.{i}.self_attn.v_proj",
    "blk.{i}.attn_output": "model.layers.{i}.self_attn.o_proj",
    "blk.{i}.attn_q_norm": "model.layers.{i}.self_attn.q_norm",
    "blk.{i}.attn_k_norm": "model.layers.{i}.self_attn.k_norm",
    "blk.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm",
    "blk.{i}.ffn_gate": "model.layers.{i}.mlp.gate_proj",
    "blk.{i}.ffn_up": "model.layers.{i}.mlp.up_proj",
    "blk.{i}.ffn_down": "model.layers.{i}.mlp.down_proj",
}
_SANDWICH = _LLAMA | {
    "blk.{i}.post_attention_norm": "model.layers.{i}.post_attention_layernorm",
    "blk.{i}.ffn_norm": "model.layers.{i}.pre_feedforward_layernorm",
    "blk.{i}.post_ffw_norm": "model.layers.{i}.post_feedforward_layernorm",
}
_PHI3 = _LLAMA | {
    "blk.{i}.attn_qkv": "model.layers.{i}.self_attn.qkv_proj",
    "blk.{i}.ffn_up": "model.layers.{i}.mlp.gate_up_proj",
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
_TABLES = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": _LLAMA,
    "gemma2": _SANDWICH,
    "gemma3": _SANDWICH,
    "phi3": _PHI3,
    "gpt2": _GPT2,
}
# What is read into the config, and is no parameter.
_FACTORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")


def names_of(architecture: str) -> Callable[[str], str | None]:
    """A function from names in the file to names in a Hugging Face folder; None for what is no parameter."""
    table = _TABLES[architecture]

    def name(theirs: str) -> str | None:
        stem, _, kind = theirs.rpartition(".")
        if stem in _FACTORS:
            return None
        layer = re.match(r"blk\.(\d+)\.", stem)
        known = table.get(re.sub(r"^blk\.\d+\.", "blk.{i}.", stem))
        if known is None:
            return theirs  # so that it is named as surplus
        return f"{known.replace('{i}', layer[1]) if layer else known}.{kind}"

    return name


def changes_of(architecture: str, raw: dict[str, Any]) -> Callable[[str], Change | None]:
    """A function from names to what undoes llama.cpp's change of the numbers, or None."""

    def change(name: str) -> Change | None:
        if architecture == "llama" and re.search(r"self_attn\.[qk]_proj\.", name):
            which = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
            return lambda x: _paired_apart(x, raw[which])
        if architecture.startswith("gemma") and "norm" in name:
            return lambda x: x - 1
        if architecture == "gpt2" and re.search(r"\.c_(attn|proj|fc)\.weight$", name):
            return lambda x: x.T
        return None

    return change


def _paired_apart(x: np.ndarray, heads: int) -> np.ndarray:
    """Features of a head in the order in which the first half is paired with the second, not neighbours."""
    return x.reshape(heads, x.shape[0] // heads // 2, 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


__all__ = ["changes_of", "names_of"]
