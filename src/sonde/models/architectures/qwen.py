"""Qwen 2, 2.5 and 3."""

from __future__ import annotations

from sonde.models.architectures.architecture import Architecture, Raw
from sonde.models.architectures.llama import read_rotary, read_sizes, rows
from sonde.models.config import Config, Kind
from sonde.models.decoder import Decoder


def read(raw: Raw, kind: str) -> Config:
    """Reads the config."""
    is_third = kind.startswith("Qwen3")
    sizes = read_sizes(raw)
    if is_third:
        sizes["depth"] = raw.get("head_dim") or 128
    rotary = read_rotary(raw, sizes["depth"])
    window = raw.get("sliding_window", 4096) if raw.get("use_sliding_window", False) else None
    types = raw.get("layer_types") or [
        "sliding_attention" if window is not None and i >= raw.get("max_window_layers", 28) else "full_attention"
        for i in range(sizes["layers"])
    ]
    slides = tuple(int(name == "sliding_attention") for name in types)
    kinds = (Kind(None, rotary), Kind(window, rotary)) if any(slides) else (Kind(None, rotary),)
    bias = raw.get("attention_bias", False) if is_third else True
    return Config(
        architecture="qwen3" if is_third else "qwen2",
        **sizes,
        kinds=kinds,
        kind_of=slides,
        epsilon=raw.get("rms_norm_eps", 1e-6),
        activation=raw.get("hidden_act", "silu"),
        gated=True,
        qkv_bias=bias,
        out_bias=bias and is_third,
        qk_norm="rms" if is_third else None,
        tied=raw.get("tie_word_embeddings", False),
        head="logits",
    )


QWEN2 = Architecture("qwen2", ("Qwen2ForCausalLM",), Decoder, read, rows, prefix="model.", model_type="qwen2")
QWEN3 = Architecture("qwen3", ("Qwen3ForCausalLM",), Decoder, read, rows, prefix="model.", model_type="qwen3")
