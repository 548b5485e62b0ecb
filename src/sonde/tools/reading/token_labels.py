"""Tokens as readable strings, for tables and pictures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.typing import ArrayLike

from sonde import _jax


@runtime_checkable
class _Pieces(Protocol):
    """A tokenizer of `sonde.models`."""

    def pieces(self, tokens: Iterable[int], /) -> Sequence[str]:
        """The text of each token."""
        ...


@runtime_checkable
class _Decodes(Protocol):
    """A tokenizer of another library."""

    def decode(self, tokens: Any, /) -> Any:
        """The text of some tokens."""
        ...


TokenNames = Callable[[int], object] | Sequence[str] | _Pieces | _Decodes
"""What turns token ids into strings: a function, a list of strings, or a tokenizer."""

Labels = Sequence[str] | ArrayLike
"""Labels of positions: strings, or token ids."""


def shown_by(tokenizer: TokenNames | None) -> Callable[[int], str]:
    """A function that shows a token.

    Args:
        tokenizer: A function of a token, a sequence of strings, or a tokenizer with `pieces` or `decode`.

    Raises:
        TypeError: It is none of them.

    Example:
        >>> shown_by(["a", "b"])(1), shown_by(str)(7)
        ('b', '7')
    """
    if tokenizer is None:
        return str
    if isinstance(tokenizer, _Pieces):
        return lambda token: str(tokenizer.pieces([token])[0])
    if isinstance(tokenizer, _Decodes) and not isinstance(tokenizer, (str, bytes)):
        return lambda token: str(tokenizer.decode([token]))
    if callable(tokenizer):
        return lambda token: str(tokenizer(token))
    if isinstance(tokenizer, Sequence) and not isinstance(tokenizer, (str, bytes)):
        return lambda token: str(tokenizer[token])
    raise TypeError(
        f"tokenizer= must be a function, a list of strings or a tokenizer with `decode`, got {tokenizer!r} of type "
        f"{type(tokenizer).__name__}; for a name such as 'gpt2', load the tokenizer and pass it"
    )


def words(tokens: Labels, tokenizer: TokenNames | None = None) -> list[str]:
    """The labels of the positions.

    Args:
        tokens: Strings, or the numbers of tokens: a row, or the first row of a batch.
        tokenizer: Turns a token into a string, as in `shown_by`.

    Example:
        >>> words(["The", " cat"]), words([[1, 0]], ["a", "b"])
        (['The', ' cat'], ['b', 'a'])
    """
    values: Any = list(tokens) if isinstance(tokens, Iterable) and not hasattr(tokens, "dtype") else tokens
    if isinstance(values, list) and all(isinstance(t, str) for t in values):
        return values
    numbers = np.asarray(values)
    numbers = numbers.reshape(-1, numbers.shape[-1])[0] if numbers.ndim > 1 else numbers
    show = shown_by(tokenizer)
    return [show(int(t)) for t in numbers]


def visible(text: str) -> str:
    r"""A token in a cell of a table, where blanks and line ends could not be seen.

    Example:
        >>> visible(" the"), visible(" "), visible("\n")
        (' the', '␣', '↵')
    """
    text = text.replace("\r", "").replace("\n", "↵").replace("\t", "⇥")
    return text if text.strip() else text.replace(" ", "␣")


def tokenizer_of(f: Callable[..., Any]) -> TokenNames | None:
    """The tokenizer that a model has, or the model that a function such as `jax.jit(model)` calls; None if none."""
    return getattr(inspect.unwrap(f), "tokenizer", None)


def input_words(f: Callable[..., Any], arguments: Sequence[Any]) -> tuple[str, ...]:
    """The first argument of a model with a tokenizer as one text per token; empty if it is not token ids."""
    tokenizer, ids = tokenizer_of(f), arguments[0] if arguments else None
    if tokenizer is None or isinstance(ids, _jax.Tracer) or not isinstance(ids, (jax.Array, np.ndarray)):
        return ()
    if ids.ndim not in (1, 2) or not ids.size or not np.issubdtype(ids.dtype, np.integer):
        return ()
    return tuple(words(ids, tokenizer))
