"""GPT-2."""

from __future__ import annotations

from sonde.errors import ModelFileError
from sonde.models.architectures.architecture import Architecture, Raw
from sonde.models.architectures.llama import output_rows
from sonde.models.config import Config
from sonde.models.decoder import Decoder
from sonde.models.name_tables import TensorRow, fused, ignored, norm, plain


def read(raw: Raw, kind: str) -> Config:
    """Reads the config."""
    del kind
    if raw.get("scale_attn_by_inverse_layer_idx"):
        raise ModelFileError("GPT-2 with scale_attn_by_inverse_layer_idx is not supported.")
    return Config(
        architecture="gpt2",
        layers=raw["n_layer"],
        width=raw["n_embd"],
        heads=raw["n_head"],
        key_heads=raw["n_head"],
        depth=raw["n_embd"] // raw["n_head"],
        hidden=raw.get("n_inner") or 4 * raw["n_embd"],
        vocabulary=raw["vocab_size"],
        positions=raw["n_positions"],
        max_length=raw["n_positions"],
        norm="layer",
        epsilon=raw.get("layer_norm_epsilon", 1e-5),
        activation=raw.get("activation_function", "gelu_new"),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        scale=None if raw.get("scale_attn_weights", True) else 1.0,
        tied=raw.get("tie_word_embeddings", True),
        head="logits",
        source=raw,
    )


def _stored(theirs: str, ours: str) -> list[TensorRow]:
    """A linear map that is stored untransposed."""
    return [plain(f"{theirs}.weight", f"{ours}/kernel"), plain(f"{theirs}.bias", f"{ours}/bias")]


def rows(config: Config) -> list[TensorRow]:
    """The table of names."""
    layer, block = "transformer.h.{i}", "blocks/{i}"
    qkv = [f"{block}/attn/{part}" for part in "qkv"]
    return [
        plain("transformer.wte.weight", "embed/embedding"),
        plain("transformer.wpe.weight", "positions/embedding"),
        *norm(f"{layer}.ln_1", f"{block}/norm1", bias=True),
        *fused(f"{layer}.attn.c_attn", qkv, [config.width] * 3, bias=True, transposed=False),
        *_stored(f"{layer}.attn.c_proj", f"{block}/attn/o"),
        *norm(f"{layer}.ln_2", f"{block}/norm2", bias=True),
        *_stored(f"{layer}.mlp.c_fc", f"{block}/mlp/up"),
        *_stored(f"{layer}.mlp.c_proj", f"{block}/mlp/down"),
        *norm("transformer.ln_f", "norm", bias=True),
        ignored(f"{layer}.attn.bias"),
        ignored(f"{layer}.attn.masked_bias"),
        *output_rows(config),
    ]


GPT2 = Architecture("gpt2", ("GPT2LMHeadModel",), Decoder, read, rows, prefix="transformer.", model_type="gpt2")
