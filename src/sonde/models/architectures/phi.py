"""Phi 1, 1.5 and 2, and Phi 3."""

from __future__ import annotations

from sonde.models.architectures.architecture import Architecture, Raw
from sonde.models.architectures.llama import output_rows, read_rotary, read_sizes
from sonde.models.config import Config, Kind
from sonde.models.decoder import Decoder
from sonde.models.name_tables import TensorRow, fused, ignored, linear, norm, plain


def read(raw: Raw, kind: str) -> Config:
    """Reads the config."""
    del kind
    sizes = read_sizes(raw)
    return Config(
        architecture="phi",
        **sizes,
        kinds=(Kind(None, read_rotary(raw, sizes["depth"], part=0.5)),),
        style="parallel",
        shares_norm=True,
        norm="layer",
        epsilon=raw.get("layer_norm_eps", 1e-5),
        activation=raw.get("hidden_act", "gelu_new"),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
        qk_norm="layer" if raw.get("qk_layernorm") else None,
        tied=raw.get("tie_word_embeddings", False),
        head="logits",
    )


def rows(config: Config) -> list[TensorRow]:
    """The table of names."""
    layer, block = "model.layers.{i}", "blocks/{i}"
    table = [
        plain("model.embed_tokens.weight", "embed/embedding"),
        *norm(f"{layer}.input_layernorm", f"{block}/norm1", bias=True),
        *(row for part in "qkv" for row in linear(f"{layer}.self_attn.{part}_proj", f"{block}/attn/{part}", bias=True)),
        *linear(f"{layer}.self_attn.dense", f"{block}/attn/o", bias=True),
        *linear(f"{layer}.mlp.fc1", f"{block}/mlp/up", bias=True),
        *linear(f"{layer}.mlp.fc2", f"{block}/mlp/down", bias=True),
        *norm("model.final_layernorm", "norm", bias=True),
        ignored(f"{layer}.self_attn.rotary_emb.inv_freq"),
    ]
    if config.qk_norm:
        table += norm(f"{layer}.self_attn.q_layernorm", f"{block}/attn/q_norm", bias=True)
        table += norm(f"{layer}.self_attn.k_layernorm", f"{block}/attn/k_norm", bias=True)
    return table + output_rows(config)


def read_third(raw: Raw, kind: str) -> Config:
    """Reads the config of Phi 3."""
    del kind
    sizes = read_sizes(raw)
    return Config(
        architecture="phi3",
        **sizes,
        kinds=(Kind(raw.get("sliding_window"), read_rotary(raw, sizes["depth"])),),
        epsilon=raw.get("rms_norm_eps", 1e-5),
        activation=raw.get("hidden_act", "silu"),
        gated=True,
        tied=raw.get("tie_word_embeddings", False),
        head="logits",
    )


def rows_of_third(config: Config) -> list[TensorRow]:
    """The table of names of Phi 3."""
    layer, block = "model.layers.{i}", "blocks/{i}"
    widths = [config.heads * config.depth, config.key_heads * config.depth, config.key_heads * config.depth]
    qkv = [f"{block}/attn/{part}" for part in "qkv"]
    gate_and_up = [f"{block}/mlp/gate", f"{block}/mlp/up"]
    return [
        plain("model.embed_tokens.weight", "embed/embedding"),
        *norm(f"{layer}.input_layernorm", f"{block}/norm1"),
        *fused(f"{layer}.self_attn.qkv_proj", qkv, widths, bias=False),
        *linear(f"{layer}.self_attn.o_proj", f"{block}/attn/o", bias=False),
        *norm(f"{layer}.post_attention_layernorm", f"{block}/norm2"),
        *fused(f"{layer}.mlp.gate_up_proj", gate_and_up, [config.hidden] * 2, bias=False),
        *linear(f"{layer}.mlp.down_proj", f"{block}/mlp/down", bias=False),
        *norm("model.norm", "norm"),
        *output_rows(config),
    ]


PHI = Architecture("phi", ("PhiForCausalLM",), Decoder, read, rows, prefix="model.", model_type="phi")
PHI3 = Architecture(
    "phi3", ("Phi3ForCausalLM",), Decoder, read_third, rows_of_third, prefix="model.", model_type="phi3"
)
