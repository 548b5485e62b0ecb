"""Tokens as readable strings, for tables and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np


def shown_by(names: Any) -> Callable[[int], str]:
    """A function that shows a token.

    Args:
        names: A function of a token, a sequence of strings, or a tokenizer with `pieces` or `decode`.

    Raises:
        TypeError: It is none of them.

    Example:
        >>> shown_by(["a", "b"])(1), shown_by(str)(7)
        ('b', '7')
    """
    if names is None:
        return str
    if hasattr(names, "pieces"):
        return lambda token: str(names.pieces([token])[0])
    if hasattr(names, "decode") and not isinstance(names, (str, bytes)):
        return lambda token: str(names.decode([token]))
    if callable(names):
        return lambda token: str(names(token))
    if isinstance(names, Sequence) and not isinstance(names, (str, bytes)):
        return lambda token: str(names[token])
    raise TypeError(
        f"names= must be a function, a list of strings or a tokenizer with `decode`, got {names!r} of type "
        f"{type(names).__name__}; for a name such as 'gpt2', load the tokenizer and pass it"
    )


def words(tokens: Any, names: Any = None) -> list[str]:
    """The labels of the positions.

    Args:
        tokens: Strings, or the numbers of tokens: a row, or the first row of a batch.
        names: Turns a token into a string, as in `shown_by`.

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
    show = shown_by(names)
    return [show(int(t)) for t in numbers]
