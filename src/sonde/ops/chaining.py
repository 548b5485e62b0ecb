"""Calls functions in turn, each with the result of the one before, for `Sequential` of both faces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def call_in_turn(functions: Iterable[Callable[..., Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls the first function with the arguments, every other one with the result of the one before.

    A tuple is passed on as positional arguments, a dict as keyword arguments, anything else as one argument.

    Returns:
        What the last function returns, None if there is no function.

    Example:
        >>> call_in_turn([divmod, lambda q, r: {"base": q, "exp": r}, pow], (17, 5), {})
        9
    """
    result: Any = None
    for function in functions:
        result = function(*args, **kwargs)
        if isinstance(result, dict):
            args, kwargs = (), result
        else:
            args, kwargs = result if isinstance(result, tuple) else (result,), {}
    return result
