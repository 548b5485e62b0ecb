"""Gemma 1, 2 and 3 (of Gemma 3, the text model)."""

from __future__ import annotations

import math
from typing import Any

from sonde.errors import ModelFileError
from sonde.models.architectures.architecture import Architecture, Raw
from sonde.models.architectures.llama import read_rotary, read_sizes, rows
from sonde.models.config import Config, Kind
from sonde.models.decoder import Decoder
from sonde.ops.rotary import Rotary

_TANH = "gelu_pytorch_tanh"


def read(raw: Raw, kind: str) -> Config:
    """Reads the config."""
    generation = 2 if kind.startswith("Gemma2") else 3 if kind.startswith("Gemma3") else 1
    if raw.get("use_bidirectional_attention"):
        raise ModelFileError("a Gemma with bidirectional attention (use_bidirectional_attention) is not supported.")
    sizes = read_sizes(raw) | {"depth": raw.get("head_dim", 256)}
    # The first configs say "gelu" but mean the tanh form; `transformers` reads them that way too.
    named = raw.get("hidden_activation") or (_TANH if generation == 1 else raw.get("hidden_act", _TANH))
    options: dict[str, Any] = {
        "norm": "offset_rms",
        "epsilon": raw.get("rms_norm_eps", 1e-6),
        "activation": named,
        "gated": True,
        "qkv_bias": raw.get("attention_bias", False),
        "out_bias": raw.get("attention_bias", False),
        "embedding_scale": math.sqrt(sizes["width"]),
        "tied": raw.get("tie_word_embeddings", True),
        "head": "logits",
    }
    if generation > 1:
        options |= {
            "style": "sandwich",
            "scale": raw.get("query_pre_attn_scalar", 256) ** -0.5,
            # Configs of Gemma 3 have the entry too, but `transformers` reads it for Gemma 2 only.
            "score_cap": raw.get("attn_logit_softcapping", 50.0) if generation == 2 else None,
            "logit_cap": raw.get("final_logit_softcapping", 30.0 if generation == 2 else None),
        }
        options |= _kinds(raw, generation, sizes)
    else:
        options["kinds"] = (Kind(None, read_rotary(raw, sizes["depth"])),)
    if generation == 3:
        options["qk_norm"] = "offset_rms"
    return Config(architecture=f"gemma{generation}", **sizes, **options)


def _kinds(raw: Raw, generation: int, sizes: dict[str, Any]) -> dict[str, Any]:
    """Layers that see a window, alternating with layers that see everything."""
    every = 2 if generation == 2 else raw.get("sliding_window_pattern") or raw.get("_sliding_window_pattern", 6)
    types = raw.get("layer_types") or [
        "sliding_attention" if (i + 1) % every else "full_attention" for i in range(sizes["layers"])
    ]
    theta = 10000.0 if generation == 2 else 1_000_000.0
    rotary = local = read_rotary(raw, sizes["depth"], theta=theta)
    if generation == 3:
        local = Rotary(sizes["depth"], theta=float(raw.get("rope_local_base_freq", 10000.0)))
        if raw.get("rope_parameters"):
            local = read_rotary(raw, sizes["depth"], layers="sliding_attention")
    kinds = (Kind(None, rotary), Kind(raw.get("sliding_window", 4096), local))
    return {"kinds": kinds, "kind_of": tuple(int(name == "sliding_attention") for name in types)}


def _gemma(number: str, *classes: str) -> Architecture:
    model_type = {"3": "gemma3_text"}.get(number, f"gemma{number}")
    return Architecture(f"gemma{number or 1}", classes, Decoder, read, rows, prefix="model.", model_type=model_type)


GEMMA1 = _gemma("", "GemmaForCausalLM")
GEMMA2 = _gemma("2", "Gemma2ForCausalLM")
GEMMA3 = _gemma("3", "Gemma3ForCausalLM")
