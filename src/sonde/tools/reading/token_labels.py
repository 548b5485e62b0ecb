"""Tokens as readable strings, for tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np


def shown_by(tokenizer: Any) -> Callable[[int], str]:
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
    if hasattr(tokenizer, "pieces"):
        return lambda token: str(tokenizer.pieces([token])[0])
    if hasattr(tokenizer, "decode") and not isinstance(tokenizer, (str, bytes)):
        return lambda token: str(tokenizer.decode([token]))
    if callable(tokenizer):
        return lambda token: str(tokenizer(token))
    if isinstance(tokenizer, Sequence) and not isinstance(tokenizer, (str, bytes)):
        return lambda token: str(tokenizer[token])
    raise TypeError(
        f"tokenizer= must be a function, a list of strings or a tokenizer with `decode`, got {tokenizer!r} of type "
        f"{type(tokenizer).__name__}; for a name such as 'gpt2', load the tokenizer and pass it"
    )


def words(tokens: Any, tokenizer: Any = None) -> list[str]:
    """The labels of the positions.

    Args:
        tokens: Strings, or the numbers of tokens: a row, or the first row of a batch.
        tokenizer: Turns a token into a string, as in `shown_by`.

    Example:
        >>> words(["The", " cat"]), words([[1, 0]], ["a", "b"])
        (['The', ' cat'], ['b', 'a'])
    """
    if isinstance(tokens, Iterable) and not hasattr(tokens, "dtype"):
        tokens = list(tokens)
        if all(isinstance(t, str) for t in tokens):
            return tokens
    numbers = np.asarray(tokens)
    numbers = numbers.reshape(-1, numbers.shape[-1])[0] if numbers.ndim > 1 else numbers
    show = shown_by(tokenizer)
    return [show(int(t)) for t in numbers]
