"""GPT-NeoX, the form of the Pythia models."""

from __future__ import annotations

import numpy as np

from sonde.models.architectures.architecture import Architecture, Raw
from sonde.models.architectures.llama import output_rows, read_rotary, read_sizes
from sonde.models.config import Config, Kind
from sonde.models.decoder import Decoder
from sonde.models.name_tables import Array, TensorRow, ignored, linear, norm, plain


def read(raw: Raw, kind: str) -> Config:
    """Reads the config."""
    del kind
    sizes = read_sizes(raw)
    rotary = read_rotary(
        raw, sizes["depth"], theta=raw.get("rotary_emb_base", 10000.0), part=raw.get("rotary_pct", 0.25)
    )
    return Config(
        architecture="gpt_neox",
        **sizes,
        kinds=(Kind(None, rotary),),
        style="parallel" if raw.get("use_parallel_residual", True) else "pre",
        norm="layer",
        epsilon=raw.get("layer_norm_eps", 1e-5),
        activation=raw.get("hidden_act", "gelu"),
        qkv_bias=raw.get("attention_bias", True),
        out_bias=raw.get("attention_bias", True),
        mlp_bias=True,
        tied=raw.get("tie_word_embeddings", False),
        head="logits",
    )


def rows(config: Config) -> list[TensorRow]:
    """The table of names."""
    layer, block = "gpt_neox.layers.{i}", "blocks/{i}"
    table = [
        plain("gpt_neox.embed_in.weight", "embed/embedding"),
        *norm(f"{layer}.input_layernorm", f"{block}/norm1", bias=True),
        *norm(f"{layer}.post_attention_layernorm", f"{block}/norm2", bias=True),
        *_by_heads(f"{layer}.attention.query_key_value", f"{block}/attn", config),
        *linear(f"{layer}.attention.dense", f"{block}/attn/o", bias=config.out_bias),
        *linear(f"{layer}.mlp.dense_h_to_4h", f"{block}/mlp/up", bias=True),
        *linear(f"{layer}.mlp.dense_4h_to_h", f"{block}/mlp/down", bias=True),
        *norm("gpt_neox.final_layer_norm", "norm", bias=True),
        *map(ignored, (f"{layer}.attention.bias", f"{layer}.attention.masked_bias")),
        ignored(f"{layer}.attention.rotary_emb.inv_freq"),
    ]
    return table + output_rows(config, "embed_out")


def _by_heads(theirs: str, ours: str, config: Config) -> list[TensorRow]:
    """Queries, keys and values in one tensor, interleaved head by head."""
    shape = (config.heads, 3, config.depth)

    def split(x: Array) -> tuple[Array, ...]:
        by_head = x.reshape(*shape, *x.shape[1:])
        return tuple(by_head[:, part].reshape(-1, *x.shape[1:]).T for part in range(3))

    def join(*parts: Array) -> Array:
        by_head = [part.T.reshape(config.heads, config.depth, *part.T.shape[1:]) for part in parts]
        return np.stack(by_head, axis=1).reshape(-1, *parts[0].T.shape[1:])

    kinds = {"weight": "kernel"} | ({"bias": "bias"} if config.qkv_bias else {})
    return [
        TensorRow(f"{theirs}.{their_kind}", tuple(f"{ours}/{part}/{kind}" for part in "qkv"), split, join)
        for their_kind, kind in kinds.items()
    ]


GPT_NEOX = Architecture(
    "gpt_neox", ("GPTNeoXForCausalLM",), Decoder, read, rows, prefix="gpt_neox.", model_type="gpt_neox"
)
