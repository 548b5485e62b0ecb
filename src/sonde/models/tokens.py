"""Tokens: the `tokenizers` package, padding and chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sonde import _extras
from sonde.errors import ModelFileError
from sonde.models.files.chat_template import render
from sonde.models.files.untrusted import read_json, reading

Message = Mapping[str, Any]
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


class Batch(NamedTuple):
    """Texts as tokens, padded to one length.

    Attributes:
        tokens: Integers, `(texts, length)`.
        mask: Boolean, `(texts, length)`: which tokens are not padding.
    """

    tokens: np.ndarray
    mask: np.ndarray


class Tokenizer:
    """Turns texts into tokens and back.

    Args:
        inner: A `tokenizers.Tokenizer`.
        config: The contents of `tokenizer_config.json`: special tokens, the chat template.
        stop: The tokens that end a text.
        source: The folder or file it was read from, for messages.

    Example:
        >>> from tokenizers import Tokenizer as Inner, models as kinds, pre_tokenizers
        >>> inner = Inner(kinds.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
        >>> inner.pre_tokenizer = pre_tokenizers.Whitespace()
        >>> tokenizer = Tokenizer(inner)
        >>> tokenizer.encode("a b c"), tokenizer.pieces([0, 1])
        ([0, 1, 2], ['a', 'b'])
    """

    def __init__(
        self,
        inner: Any,
        config: Mapping[str, Any] | None = None,
        stop: Iterable[int] = (),
        *,
        source: str | Path = "a tokenizer made in Python",
    ):
        inner.no_padding()  # some files ask for padding to a fixed length, which would count as text here
        inner.no_truncation()
        self.inner, self.source = inner, source
        self.config = dict(config or {})
        self.special = {name: _text(self.config[name]) for name in _SPECIAL if self.config.get(name)}
        end = self.token_id(self.special.get("eos_token"))
        self.stop: tuple[int, ...] = tuple(dict.fromkeys([*stop, *([] if end is None else [end])]))

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer | None:
        """Reads `tokenizer.json` and related files; None if a folder has none."""
        path = folder / "tokenizer.json"
        if not path.exists():
            return None
        config = _read(folder / "tokenizer_config.json")
        template = folder / "chat_template.jinja"
        if template.exists():
            with reading(template):
                config["chat_template"] = template.read_text()
        generation, model = _read(folder / "generation_config.json"), _read(folder / "config.json")
        stop = generation.get("eos_token_id", model.get("eos_token_id"))
        stop = stop if isinstance(stop, list) else [] if stop is None else [stop]
        if not all(type(token) is int for token in stop):
            raise ModelFileError(f"{folder}: eos_token_id must be a token or a list of tokens, but is {stop!r}.")
        with reading(path, "the tokenizer"):
            inner = _tokenizers().Tokenizer.from_file(str(path))
        with reading(folder / "tokenizer_config.json", "the special tokens"):
            return cls(inner, config, stop, source=folder)

    def save(self, folder: Path) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`."""
        self.inner.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps(self.config, indent=2, ensure_ascii=False) + "\n")

    # -------------------------------------------------------------------------------------------------- texts

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text.

        Args:
            text: The text.
            special: Whether to add the tokens that the model expects around a text.
        """
        with reading(self.source, "the tokenizer"):
            return self.inner.encode(text, add_special_tokens=special).ids

    def decode(self, tokens: Iterable[int], *, special: bool = False) -> str:
        """The text of some tokens.

        Args:
            tokens: The tokens.
            special: Whether special tokens are shown.
        """
        numbers = [int(token) for token in tokens]
        with reading(self.source, "the tokenizer"):
            return self.inner.decode(numbers, skip_special_tokens=not special)

    def pieces(self, tokens: Iterable[int]) -> list[str]:
        """Every token as a separate text, for labels of pictures."""
        return [self.decode([token], special=True) for token in tokens]

    def batch(self, texts: Sequence[str], *, special: bool = True, longest: int | None = None) -> Batch:
        """Several texts, with padding after the shorter ones.

        Args:
            texts: The texts.
            special: Whether to add the tokens that the model expects around a text.
            longest: The maximum number of tokens kept per text; all if None.
        """
        rows = [self.encode(text, special=special)[:longest] for text in texts]
        return pad(rows, self.pad_id)

    def one(self, text: str) -> int:
        """The token of a text that is a single token.

        Raises:
            ValueError: The text is not exactly one token.
        """
        tokens = self.encode(text, special=False)
        if len(tokens) != 1:
            raise ValueError(f"{text!r} must be one token, but is {len(tokens)}: {self.pieces(tokens)}.")
        return tokens[0]

    def token_id(self, text: str | None) -> int | None:
        """The number of a token by its text in the vocabulary; None if there is no such token."""
        return None if text is None else self.inner.token_to_id(text)

    @property
    def pad_id(self) -> int:
        """The token that fills up shorter texts."""
        token_id = self.token_id(self.special.get("pad_token"))
        return token_id if token_id is not None else (self.stop[0] if self.stop else 0)

    # --------------------------------------------------------------------------------------------------- chats

    def chat(self, messages: str | Sequence[Message], *, reply: bool = True, **values: Any) -> str:
        """A conversation as text, in the format that the model was trained on.

        Args:
            messages: Dicts with `role` and `content`; a text means one message of the user.
            reply: Whether the text ends where the model's answer begins.
            **values: More values for the template.

        Raises:
            ValueError: The model has no chat template, or the template refuses the messages.
        """
        template = self.config.get("chat_template")
        with reading(self.source, "the chat template"):
            if isinstance(template, list):  # several, by name
                named = {entry["name"]: entry["template"] for entry in template}
                template = named.get("default", next(iter(named.values()), None))
            if template is not None and not isinstance(template, str):
                raise TypeError(f"a template is a text, not a {type(template).__name__}")
        if not template:
            raise ValueError("this model has no chat template: give the prompt as a text.")
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        names = {**self.special, "messages": messages, "add_generation_prompt": reply, "tools": None, "documents": None}
        with reading(self.source, "the chat template"):
            return render(template, names | values)


def pad(rows: Sequence[Sequence[int]], fill: int, *, left: bool = False, length: int | None = None) -> Batch:
    """Rows of tokens as one array.

    Args:
        rows: The tokens of every text.
        fill: The token that fills up shorter ones.
        left: Whether padding goes before a text.
        length: The length of the array; that of the longest text if None.

    Example:
        >>> pad([[1, 2], [3]], 0).tokens.tolist()
        [[1, 2], [3, 0]]
    """
    length = length or max((len(row) for row in rows), default=0)
    tokens = np.full((len(rows), length), fill, np.int32)
    mask = np.zeros((len(rows), length), bool)
    for i, row in enumerate(rows):
        at = slice(length - len(row), None) if left else slice(len(row))
        tokens[i, at] = row
        mask[i, at] = True
    return Batch(tokens, mask)


def _tokenizers() -> Any:
    return _extras.load("tokenizers", extra="models", purpose="Turning texts into tokens")


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _text(token: Any) -> str:
    return token["content"] if isinstance(token, Mapping) else str(token)
