"""BERT and MiniLM, and RoBERTa, which differs in the names and in where positions begin."""

from __future__ import annotations

from typing import Any

from sonde.models.architectures.architecture import Architecture, Raw
from sonde.models.architectures.llama import read_sizes
from sonde.models.config import Config
from sonde.models.encoder import Encoder
from sonde.models.names import Row, ignored, linear, norm, plain


def _read(raw: Raw, kind: str, name: str, offset: int) -> Config:
    head: Any = {"MaskedLM": "masked", "PreTraining": "masked", "SequenceClassification": "classes"}.get(
        kind.partition("For")[2], "none"
    )
    return Config(
        architecture=name,
        **read_sizes(raw),
        positions=raw["max_position_embeddings"],
        position_offset=offset,
        style="post",
        causal=False,
        norm="layer",
        epsilon=raw.get("layer_norm_eps", 1e-12),
        activation=raw.get("hidden_act", "gelu"),
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        types=raw.get("type_vocab_size", 2),
        embedding_norm=True,
        final_norm=False,
        pooler=head in ("none", "classes") or kind.endswith("PreTraining"),
        head=head,
        classes=len(raw.get("id2label") or (0, 1)),
    )


def read(raw: Raw, kind: str) -> Config:
    """Reads the config of BERT."""
    return _read(raw, kind, "bert", 0)


def read_roberta(raw: Raw, kind: str) -> Config:
    """Reads the config of RoBERTa: its positions begin after that of padding."""
    return _read(raw, kind, "roberta", (raw.get("pad_token_id") or 1) + 1)


def _body(prefix: str) -> list[Row]:
    layer, block = prefix + "encoder.layer.{i}", "blocks/{i}"
    embeddings = f"{prefix}embeddings"
    names = {"query": "q", "key": "k", "value": "v"}
    return [
        plain(f"{embeddings}.word_embeddings.weight", "embed/embedding"),
        plain(f"{embeddings}.position_embeddings.weight", "positions/embedding"),
        plain(f"{embeddings}.token_type_embeddings.weight", "types/embedding"),
        *norm(f"{embeddings}.LayerNorm", "embed_norm", bias=True),
        *(
            row
            for theirs, ours in names.items()
            for row in linear(f"{layer}.attention.self.{theirs}", f"{block}/attn/{ours}", bias=True)
        ),
        *linear(f"{layer}.attention.output.dense", f"{block}/attn/o", bias=True),
        *norm(f"{layer}.attention.output.LayerNorm", f"{block}/norm1", bias=True),
        *linear(f"{layer}.intermediate.dense", f"{block}/mlp/up", bias=True),
        *linear(f"{layer}.output.dense", f"{block}/mlp/down", bias=True),
        *norm(f"{layer}.output.LayerNorm", f"{block}/norm2", bias=True),
        ignored(f"{embeddings}.position_ids"),
        ignored(f"{embeddings}.token_type_ids"),
    ]


def rows(config: Config) -> list[Row]:
    """The table of names of BERT."""
    found = _body("bert.")
    found += linear("bert.pooler.dense", "pooler", bias=True) if config.pooler else []
    if config.head == "masked":
        found += linear("cls.predictions.transform.dense", "head/dense", bias=True)
        found += norm("cls.predictions.transform.LayerNorm", "head/norm", bias=True)
        found += [plain("cls.predictions.bias", "head/bias")]
    if config.head == "classes":
        found += linear("classifier", "head", bias=True)
    return found + [
        ignored(name)
        for name in (
            "cls.predictions.decoder.weight",
            "cls.predictions.decoder.bias",
            "cls.seq_relationship.weight",
            "cls.seq_relationship.bias",
        )
    ]


def rows_of_roberta(config: Config) -> list[Row]:
    """The table of names of RoBERTa."""
    found = _body("roberta.")
    if config.head == "masked":
        found += linear("lm_head.dense", "head/dense", bias=True)
        found += norm("lm_head.layer_norm", "head/norm", bias=True)
        found += [
            plain("lm_head.bias", "head/bias"),
            ignored("lm_head.decoder.weight"),
            ignored("lm_head.decoder.bias"),
        ]
    if config.head == "classes":
        found += linear("classifier.dense", "pooler", bias=True) + linear("classifier.out_proj", "head", bias=True)
    elif config.pooler:
        found += linear("roberta.pooler.dense", "pooler", bias=True)
    return found


_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification")
BERT = Architecture(
    "bert", tuple(f"Bert{head}" for head in (*_HEADS, "ForPreTraining")), Encoder, read, rows, "bert.", "bert"
)
ROBERTA = Architecture(
    "roberta", tuple(f"Roberta{h}" for h in _HEADS), Encoder, read_roberta, rows_of_roberta, "roberta.", "roberta"
)
