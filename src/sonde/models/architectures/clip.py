"""CLIP, and its two towers on their own."""

from __future__ import annotations

from typing import Any

from sonde.models.architectures.architecture import Architecture, Raw
from sonde.models.architectures.llama import read_sizes
from sonde.models.architectures.vit import check_square, patch_rows
from sonde.models.clip import CLIP, TextTower, TowersConfig
from sonde.models.config import Config
from sonde.models.name_tables import TensorRow, ignored, linear, norm, plain
from sonde.models.vision import Vision

# Defaults: configs leave out entries that are as in the first model.
_TEXT = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
    "vocab_size": 49408,
    "eos_token_id": 49407,
}
_IMAGE = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
    "vocab_size": 0,
}


def _tower(raw: Raw) -> dict[str, Any]:
    return {
        **read_sizes(raw),
        "architecture": "clip",
        "norm": "layer",
        "epsilon": raw.get("layer_norm_eps", 1e-5),
        "activation": raw.get("hidden_act", "quick_gelu"),
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
    }


def read_text(raw: Raw, kind: str, projected: int | None = None) -> Config:
    """Reads the config of the tower for texts."""
    raw = {**_TEXT, **raw}
    projected = raw.get("projection_dim", 512) if kind.endswith("WithProjection") else projected
    return Config(
        **_tower(raw),
        positions=raw["max_position_embeddings"],
        head="projection" if projected else "none",
        classes=projected or 0,
        end_token=raw["eos_token_id"],
    )


def read_image(raw: Raw, kind: str, projected: int | None = None) -> Config:
    """Reads the config of the tower for images."""
    raw = {**_IMAGE, **raw}
    check_square(raw)
    projected = raw.get("projection_dim", 512) if kind.endswith("WithProjection") else projected
    return Config(
        **_tower(raw),
        causal=False,
        embedding_norm=True,
        norms_first=True,
        head="projection" if projected else "none",
        classes=projected or 0,
        image=raw["image_size"],
        patch=raw["patch_size"],
        channels=raw.get("num_channels", 3),
        patch_bias=False,
    )


def read(raw: Raw, kind: str) -> TowersConfig:
    """Reads the config of both towers."""
    width = raw.get("projection_dim", 512)
    image = read_image(raw.get("vision_config") or {}, kind, width)
    return TowersConfig("clip", image, read_text(raw.get("text_config") or {}, kind, width), raw)


def _blocks(theirs: str, ours: str) -> list[TensorRow]:
    layer, block = theirs + ".encoder.layers.{i}", ours + "blocks/{i}"
    names = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o"}
    return [
        *norm(f"{layer}.layer_norm1", f"{block}/norm1", bias=True),
        *(row for a, b in names.items() for row in linear(f"{layer}.self_attn.{a}", f"{block}/attn/{b}", bias=True)),
        *norm(f"{layer}.layer_norm2", f"{block}/norm2", bias=True),
        *linear(f"{layer}.mlp.fc1", f"{block}/mlp/up", bias=True),
        *linear(f"{layer}.mlp.fc2", f"{block}/mlp/down", bias=True),
        ignored(f"{theirs}.embeddings.position_ids"),
    ]


def rows_of_text(config: Config, ours: str = "") -> list[TensorRow]:
    """The table of names of the tower for texts."""
    return [
        plain("text_model.embeddings.token_embedding.weight", f"{ours}embed/embedding"),
        plain("text_model.embeddings.position_embedding.weight", f"{ours}positions/embedding"),
        *_blocks("text_model", ours),
        *norm("text_model.final_layer_norm", f"{ours}norm", bias=True),
        *(linear("text_projection", f"{ours}head", bias=False) if config.head == "projection" else []),
    ]


def rows_of_image(config: Config, ours: str = "") -> list[TensorRow]:
    """The table of names of the tower for images."""
    return [
        plain("vision_model.embeddings.class_embedding", f"{ours}first"),
        plain("vision_model.embeddings.position_embedding.weight", f"{ours}positions/embedding"),
        *patch_rows("vision_model.embeddings.patch_embedding", bias=False, prefix=ours),
        *norm("vision_model.pre_layrnorm", f"{ours}embed_norm", bias=True),
        *_blocks("vision_model", ours),
        *norm("vision_model.post_layernorm", f"{ours}norm", bias=True),
        *(linear("visual_projection", f"{ours}head", bias=False) if config.head == "projection" else []),
    ]


def rows(config: TowersConfig) -> list[TensorRow]:
    """The table of names of both towers."""
    towers = rows_of_image(config.image, "image/") + rows_of_text(config.text, "text/")
    return [*towers, plain("logit_scale", "log_scale")]


CLIP_BOTH = Architecture("clip", ("CLIPModel",), CLIP, read, rows, model_type="clip")
CLIP_TEXT = Architecture(
    "clip",
    ("CLIPTextModel", "CLIPTextModelWithProjection"),
    TextTower,
    read_text,
    rows_of_text,
    model_type="clip_text_model",
)
CLIP_IMAGE = Architecture(
    "clip",
    ("CLIPVisionModel", "CLIPVisionModelWithProjection"),
    Vision,
    read_image,
    rows_of_image,
    model_type="clip_vision_model",
)
