"""The tokenizer inside a GGUF file, rebuilt with the `tokenizers` package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sonde import _extras
from sonde.errors import ModelFileError
from sonde.models.tokens import Tokenizer

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_CONTROL, _USER_DEFINED = 3, 4


def tokenizer_of(fields: dict[str, Any], source: str | Path = "a .gguf file") -> Tokenizer | None:
    """The tokenizer of a file; None if it has none.

    Args:
        fields: The metadata of the file.
        source: The file, for messages.

    Raises:
        ModelFileError: Its kind is unknown.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind is None or "tokenizer.ggml.tokens" not in fields:
        return None
    package = _extras.load("tokenizers", extra="models", purpose="The tokenizer of a .gguf file")
    _check(fields)
    if kind == "gpt2":
        inner = _byte_level(package, fields)
    elif kind == "llama":
        inner = _sentence_pieces(package, fields)
    elif kind == "bert":
        inner = _word_pieces(package, fields)
    else:
        raise ModelFileError(f"unknown tokenizer {kind!r}; known are gpt2, llama and bert.")
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    kinds = fields.get("tokenizer.ggml.token_type") or []
    added = package.AddedToken
    inner.add_special_tokens([added(t, special=True) for t, k in zip(tokens, kinds) if k == _CONTROL])
    inner.add_tokens([added(t, normalized=False) for t, k in zip(tokens, kinds) if k == _USER_DEFINED])
    config = _config(fields, tokens)
    around = {
        "bos": fields.get("tokenizer.ggml.add_bos_token", kind in ("llama", "bert")),
        "eos": fields.get("tokenizer.ggml.add_eos_token", kind == "bert"),
    }
    before, after = (config.get(f"{name}_token") if wanted else None for name, wanted in around.items())
    if before or after:
        inner.post_processor = package.processors.TemplateProcessing(
            single=[*filter(None, (before, "$A", after))],
            special_tokens=[(token, inner.token_to_id(token)) for token in {before, after} if token],
        )
    return Tokenizer(inner, config, source=source)


_MOST_PARTS = 1 << 27  # characters of all pairs that tokens may be merged from; real vocabularies have some millions
_LISTS = {"tokens": str, "merges": str, "scores": float, "token_type": int}


def _check(fields: dict[str, Any]) -> None:
    """Raises ModelFileError if an entry cannot be what it is."""
    tokens = fields["tokenizer.ggml.tokens"]
    for name, kind in _LISTS.items():
        at = f"tokenizer.ggml.{name}"
        value = fields.get(at, [])
        if not isinstance(value, list) or not all(type(one) is kind for one in value):
            raise ModelFileError(f"{at} is not a list of {kind.__name__}.")
        if name in ("scores", "token_type") and at in fields and len(value) != len(tokens):
            raise ModelFileError(f"{at} has {len(value)} entries, but there are {len(tokens)} tokens.")
    for at, value in fields.items():
        if at.startswith("tokenizer.ggml.") and at.endswith("_token_id") and type(value) is not int:
            raise ModelFileError(f"{at} is {value!r}, which is not a token.")
    if sum(len(token) ** 2 for token in tokens) > _MOST_PARTS:
        raise ModelFileError("tokenizer.ggml.tokens has tokens that are too long.")
    unknown = fields.get("tokenizer.ggml.unknown_token_id", 0)
    if not 0 <= unknown < max(len(tokens), 1):
        raise ModelFileError(f"tokenizer.ggml.unknown_token_id is {unknown}, but there are {len(tokens)} tokens.")
    template = fields.get("tokenizer.chat_template", "")
    if not isinstance(template, str):
        raise ModelFileError(f"tokenizer.chat_template is not a text, but a {type(template).__name__}.")


def _config(fields: dict[str, Any], tokens: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "attention_mask"],
    }
    # BERT's tokens that begin and end a text are called class and separator. The misspelling is the format's.
    for name, *theirs in (
        ("bos", "bos", "cls"),
        ("eos", "eos", "seperator"),
        ("unk", "unknown"),
        ("pad", "padding"),
        ("mask", "mask"),
    ):
        numbers = (fields.get(f"tokenizer.ggml.{one}_token_id") for one in theirs)
        number = next((one for one in numbers if one is not None), None)
        if number is not None and 0 <= number < len(tokens):
            found[f"{name}_token"] = tokens[number]
    if "tokenizer.chat_template" in fields:
        found["chat_template"] = fields["tokenizer.chat_template"]
    return found


def _byte_level(package: Any, fields: dict[str, Any]) -> Any:
    kind = fields.get("tokenizer.ggml.pre", "gpt-2")
    pre = package.pre_tokenizers

    def split(pattern: str) -> Any:
        parts = pre.Split(package.Regex(pattern), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre.Sequence(list(parts))

    def plain() -> Any:
        return pre.ByteLevel(add_prefix_space=False)

    known: dict[str, Callable[[], Any]] = {
        "default": plain,
        "gpt-2": plain,
        "olmo": plain,  # GPT-NeoX's
        "phi-2": plain,
        "smollm": lambda: pre.Sequence([pre.Digits(individual_digits=True), plain()]),
        "llama-bpe": lambda: split(_LLAMA3),
        "llama3": lambda: split(_LLAMA3),
        "qwen2": lambda: split(_QWEN2),
        "deepseek-r1-qwen": lambda: split(_QWEN2),
    }
    if kind not in known:
        raise ModelFileError(f"unknown way of splitting texts, {kind!r}; known are {', '.join(sorted(known))}.")
    vocabulary = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("tokenizer.ggml.merges", [])]
    for merge in merges:
        if len(merge) != 2 or any(part not in vocabulary for part in (*merge, "".join(merge))):
            raise ModelFileError(f"tokenizer.ggml.merges has {' '.join(merge)!r}, which does not merge two tokens.")
    inner = package.Tokenizer(package.models.BPE(vocabulary, merges, ignore_merges=kind in ("llama-bpe", "llama3")))
    inner.pre_tokenizer = known[kind]()
    inner.decoder = package.decoders.ByteLevel()
    if kind in ("qwen2", "deepseek-r1-qwen"):
        inner.normalizer = package.normalizers.NFC()
    return inner


def _word_pieces(package: Any, fields: dict[str, Any]) -> Any:
    """BERT's tokenizer: the file marks the beginnings of words, the tokenizer marks continuations."""

    def piece(token: str) -> str:
        if token.startswith("[") and token.endswith("]"):
            return token
        return token[1:] if token.startswith("▁") else f"##{token}"

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    pieces = [piece(token) for token in tokens]
    unknown = tokens[fields.get("tokenizer.ggml.unknown_token_id", pieces.index("[UNK]") if "[UNK]" in pieces else 0)]
    vocabulary = {token: i for i, token in enumerate(pieces)}
    inner = package.Tokenizer(package.models.WordPiece(vocabulary, unk_token=unknown))
    cased = any(token != token.lower() for token in pieces if not token.startswith("["))
    inner.normalizer = package.normalizers.BertNormalizer(lowercase=not cased)
    inner.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    inner.decoder = package.decoders.WordPiece()
    return inner


def _sentence_pieces(package: Any, fields: dict[str, Any]) -> Any:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    scores: list[float] = fields["tokenizer.ggml.scores"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    # A piece may be merged from any two others, in the order of the scores.
    merges = [
        (scores[i], vocabulary[token[:at]], vocabulary[token[at:]], token[:at], token[at:])
        for i, token in enumerate(tokens)
        for at in range(1, len(token))
        if token[:at] in vocabulary and token[at:] in vocabulary
    ]
    merges.sort(key=lambda merge: (-merge[0], merge[1], merge[2]))
    unknown = fields.get("tokenizer.ggml.unknown_token_id")
    inner = package.Tokenizer(
        package.models.BPE(
            vocabulary,
            [merge[3:] for merge in merges],
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaced = fields.get("tokenizer.ggml.add_space_prefix", True)
    parts = [package.normalizers.Prepend("▁")] if spaced else []
    inner.normalizer = package.normalizers.Sequence([*parts, package.normalizers.Replace(" ", "▁")])
    kinds = package.decoders
    decoders = [kinds.Replace("▁", " "), kinds.ByteFallback(), kinds.Fuse()]
    inner.decoder = kinds.Sequence([*decoders, *([kinds.Strip(" ", 1, 0)] if spaced else [])])
    return inner
