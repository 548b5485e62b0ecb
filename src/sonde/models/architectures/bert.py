"""BERT and MiniLM, and RoBERTa, which differs in the names and in where positions begin."""

from __future__ import annotations

from typing import Any

from sonde.errors import ModelFileError
from sonde.models.architectures.architecture import Architecture, Raw
from sonde.models.architectures.llama import read_sizes
from sonde.models.config import Config
from sonde.models.encoder import Encoder
from sonde.models.name_tables import TensorRow, ignored, linear, linear_or_ignored, matrix, norm, plain


def _read(raw: Raw, kind: str, name: str, **options: Any) -> Config:
    head: Any = {"MaskedLM": "masked", "PreTraining": "masked", "SequenceClassification": "classes"}.get(
        kind.partition("For")[2], "none"
    )
    if raw.get("position_embedding_type", "absolute") != "absolute":
        raise ModelFileError(f"position_embedding_type {raw['position_embedding_type']!r} is not supported.")
    if raw.get("is_decoder"):
        raise ModelFileError("a BERT that is a decoder (is_decoder) is not supported.")
    return Config(
        architecture=name,
        **read_sizes(raw),
        positions=raw["max_position_embeddings"],
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
        pooler=raw.get("add_pooling_layer", True) if head == "none" else head == "classes" or "PreTraining" in kind,
        pooling=raw.get("pooling"),
        pairs=kind.endswith("PreTraining"),
        tied=raw.get("tie_word_embeddings", True),
        head=head,
        classes=len(raw.get("id2label") or (0, 1)),
        **options,
    )


def read(raw: Raw, kind: str) -> Config:
    """Reads the config of BERT."""
    return _read(raw, kind, "bert")


def read_roberta(raw: Raw, kind: str) -> Config:
    """Reads the config of RoBERTa: its positions start after that of padding, and its head always has a gelu."""
    return _read(raw, kind, "roberta", position_offset=raw.get("pad_token_id", 1) + 1, head_activation="gelu")


def _body(prefix: str) -> list[TensorRow]:
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


def rows(config: Config) -> list[TensorRow]:
    """The table of names of BERT."""
    table = _body("bert.")
    table += linear_or_ignored("bert.pooler.dense", "pooler", wanted=config.pooler)
    if config.head == "masked":
        table += linear("cls.predictions.transform.dense", "head/dense", bias=True)
        table += norm("cls.predictions.transform.LayerNorm", "head/norm", bias=True)
        table += [plain("cls.predictions.bias", "head/bias"), _table("cls.predictions.decoder.weight", config)]
    if config.head == "classes":
        table += linear("classifier", "head", bias=True)
    table += linear_or_ignored("cls.seq_relationship", "pairs", wanted=config.pairs)
    return [*table, ignored("cls.predictions.decoder.bias")]


def _table(theirs: str, config: Config) -> TensorRow:
    """The table of the head for masked tokens; a checkpoint with tied weights may repeat the embeddings there."""
    return ignored(theirs) if config.tied else matrix(theirs, "head/table/kernel")


def rows_of_roberta(config: Config) -> list[TensorRow]:
    """The table of names of RoBERTa."""
    table = _body("roberta.")
    if config.head == "masked":
        table += linear("lm_head.dense", "head/dense", bias=True)
        table += norm("lm_head.layer_norm", "head/norm", bias=True)
        table += [
            plain("lm_head.bias", "head/bias"),
            _table("lm_head.decoder.weight", config),
            ignored("lm_head.decoder.bias"),
        ]
    if config.head == "classes":
        table += linear("classifier.dense", "pooler", bias=True) + linear("classifier.out_proj", "head", bias=True)
    else:
        table += linear_or_ignored("roberta.pooler.dense", "pooler", wanted=config.pooler)
    return table


_HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification")
BERT = Architecture(
    "bert", tuple(f"Bert{head}" for head in (*_HEADS, "ForPreTraining")), Encoder, read, rows, "bert.", "bert"
)
ROBERTA = Architecture(
    "roberta", tuple(f"Roberta{h}" for h in _HEADS), Encoder, read_roberta, rows_of_roberta, "roberta.", "roberta"
)
