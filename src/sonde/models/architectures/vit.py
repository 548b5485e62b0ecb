"""ViT."""

from __future__ import annotations

from sonde.errors import ModelFileError
from sonde.models.architectures.architecture import Architecture, Raw
from sonde.models.architectures.llama import read_sizes
from sonde.models.config import Config
from sonde.models.name_tables import TensorRow, ignored, linear, linear_or_ignored, norm, plain
from sonde.models.vision import Vision


def read(raw: Raw, kind: str) -> Config:
    """Reads the config."""
    check_square(raw)
    is_classifier = kind == "ViTForImageClassification"
    bias = raw.get("qkv_bias", True)
    return Config(
        architecture="vit",
        **read_sizes({"vocab_size": 0, **raw}),
        style="pre",
        causal=False,
        norm="layer",
        epsilon=raw.get("layer_norm_eps", 1e-12),
        activation=raw.get("hidden_act", "gelu"),
        qkv_bias=bias,
        out_bias=True,
        mlp_bias=True,
        pooler=not is_classifier and raw.get("add_pooling_layer", True),
        head="classes" if is_classifier else "none",
        classes=len(raw.get("id2label") or (0, 1)),
        image=raw.get("image_size", 224),
        patch=raw.get("patch_size", 16),
        channels=raw.get("num_channels", 3),
    )


def check_square(raw: Raw) -> None:
    """Refuses images and patches that are not square.

    Raises:
        ModelFileError: They are not square.
    """
    for name in ("image_size", "patch_size"):
        if not isinstance(raw.get(name, 0), int):
            raise ModelFileError(f"{name} is {raw[name]}; images and patches must be square, their size one number.")


def patch_rows(theirs: str, *, bias: bool, prefix: str = "") -> list[TensorRow]:
    """The embedding of patches, which is stored with channels before rows and columns."""
    weight = TensorRow(
        f"{theirs}.weight",
        (f"{prefix}patches/kernel",),
        lambda x: (x.transpose(2, 3, 1, 0),),
        lambda x: x.transpose(3, 2, 0, 1),
    )
    return [weight, plain(f"{theirs}.bias", f"{prefix}patches/bias")] if bias else [weight]


def rows(config: Config) -> list[TensorRow]:
    """The table of names."""
    layer, block = "vit.encoder.layer.{i}", "blocks/{i}"
    names = {"query": "q", "key": "k", "value": "v"}
    table = [
        TensorRow("vit.embeddings.cls_token", ("first",), lambda x: (x[0, 0],), lambda x: x[None, None]),
        TensorRow("vit.embeddings.position_embeddings", ("positions/embedding",), lambda x: (x[0],), lambda x: x[None]),
        *patch_rows("vit.embeddings.patch_embeddings.projection", bias=True),
        *norm(f"{layer}.layernorm_before", f"{block}/norm1", bias=True),
        *(
            row
            for theirs, ours in names.items()
            for row in linear(f"{layer}.attention.attention.{theirs}", f"{block}/attn/{ours}", bias=config.qkv_bias)
        ),
        *linear(f"{layer}.attention.output.dense", f"{block}/attn/o", bias=True),
        *norm(f"{layer}.layernorm_after", f"{block}/norm2", bias=True),
        *linear(f"{layer}.intermediate.dense", f"{block}/mlp/up", bias=True),
        *linear(f"{layer}.output.dense", f"{block}/mlp/down", bias=True),
        *norm("vit.layernorm", "norm", bias=True),
        ignored("vit.embeddings.mask_token"),
    ]
    table += linear_or_ignored("vit.pooler.dense", "pooler", wanted=config.pooler)
    return table + (linear("classifier", "head", bias=True) if config.head == "classes" else [])


VIT = Architecture(
    "vit", ("ViTModel", "ViTForImageClassification"), Vision, read, rows, prefix="vit.", model_type="vit"
)
