"""Llama 2 and 3, and models of the same form: SmolLM2, TinyLlama, Mistral."""

from __future__ import annotations

from typing import Any

from sonde.models.architectures.architecture import Architecture, Raw
from sonde.models.config import Config, Kind
from sonde.models.decoder import Decoder
from sonde.models.name_tables import TensorRow, ignored, linear, norm, plain
from sonde.ops.rotary import Rotary


def read_rotary(
    raw: Raw, depth: int, *, theta: float = 10000.0, part: float = 1.0, layers: str = "full_attention"
) -> Rotary:
    """The rotary embedding that a config describes.

    Args:
        raw: The config. Since version 5, `transformers` writes `rope_parameters` in place of `rope_scaling`.
        depth: Features of a head.
        theta: The base of the frequencies, if the config has none.
        part: Which fraction of a head is rotated, if the config has none.
        layers: Which kind of layers, if the config has an entry per kind.
    """
    told = raw.get("rope_parameters") or {}
    told = told.get(layers, told)
    original = raw.get("original_max_position_embeddings")
    if not told:
        told = dict(raw.get("rope_scaling") or {})
        if told.get("rope_type", told.get("type")) in ("longrope", "su"):
            told.pop("original_max_position_embeddings", None)  # `transformers` reads it beside `rope_scaling` only
    return Rotary.from_config(
        told,
        width=int(depth * told.get("partial_rotary_factor", raw.get("partial_rotary_factor", part))),
        theta=raw.get("rope_theta", theta),
        max_positions=raw.get("max_position_embeddings", 2048),
        original=original,
    )


def read_sizes(raw: Raw) -> dict[str, Any]:
    """The sizes under the names that most configs use."""
    heads = raw["num_attention_heads"]
    return {
        "layers": raw["num_hidden_layers"],
        "width": raw["hidden_size"],
        "heads": heads,
        "key_heads": raw.get("num_key_value_heads") or heads,
        "depth": raw.get("head_dim") or raw["hidden_size"] // heads,
        "hidden": raw["intermediate_size"],
        "vocabulary": raw["vocab_size"],
        "max_length": raw.get("max_position_embeddings", 2048),
        "source": raw,
    }


def read(raw: Raw, kind: str) -> Config:
    """Reads the config."""
    sizes = read_sizes(raw)
    window = raw.get("sliding_window", 4096) if kind.startswith("Mistral") else None
    return Config(
        architecture="llama",
        **sizes,
        kinds=(Kind(window, read_rotary(raw, sizes["depth"])),),
        epsilon=raw.get("rms_norm_eps", 1e-6),
        activation=raw.get("hidden_act", "silu"),
        gated=True,
        qkv_bias=raw.get("attention_bias", False),
        out_bias=raw.get("attention_bias", False),
        mlp_bias=raw.get("mlp_bias", False),
        tied=raw.get("tie_word_embeddings", False),
        head="logits",
    )


def rows(config: Config) -> list[TensorRow]:
    """The table of names."""
    layer, block = "model.layers.{i}", "blocks/{i}"
    table = [
        plain("model.embed_tokens.weight", "embed/embedding"),
        *norm(f"{layer}.input_layernorm", f"{block}/norm1"),
        *(
            row
            for part in "qkv"
            for row in linear(f"{layer}.self_attn.{part}_proj", f"{block}/attn/{part}", bias=config.qkv_bias)
        ),
        *linear(f"{layer}.self_attn.o_proj", f"{block}/attn/o", bias=config.out_bias),
        *linear(f"{layer}.mlp.up_proj", f"{block}/mlp/up", bias=config.mlp_bias),
        *linear(f"{layer}.mlp.gate_proj", f"{block}/mlp/gate", bias=config.mlp_bias),
        *linear(f"{layer}.mlp.down_proj", f"{block}/mlp/down", bias=config.mlp_bias),
        *norm("model.norm", "norm"),
        ignored(f"{layer}.self_attn.rotary_emb.inv_freq"),
    ]
    if config.qk_norm:
        table += norm(f"{layer}.self_attn.q_norm", f"{block}/attn/q_norm")
        table += norm(f"{layer}.self_attn.k_norm", f"{block}/attn/k_norm")
    if config.style == "sandwich":
        table += norm(f"{layer}.post_attention_layernorm", f"{block}/attn_norm")
        table += norm(f"{layer}.pre_feedforward_layernorm", f"{block}/norm2")
        table += norm(f"{layer}.post_feedforward_layernorm", f"{block}/mlp_norm")
    else:
        table += norm(f"{layer}.post_attention_layernorm", f"{block}/norm2")
    return table + output_rows(config)


def output_rows(config: Config, theirs: str = "lm_head") -> list[TensorRow]:
    """The rows of the output layer; a checkpoint with tied weights may repeat the embeddings there."""
    if not config.tied:
        return linear(theirs, "head", bias=config.head_bias)
    return [ignored(f"{theirs}.weight"), *([plain(f"{theirs}.bias", "head_bias")] if config.head_bias else [])]


LLAMA = Architecture("llama", ("LlamaForCausalLM",), Decoder, read, rows, prefix="model.", model_type="llama")
MISTRAL = Architecture("mistral", ("MistralForCausalLM",), Decoder, read, rows, prefix="model.", model_type="mistral")
