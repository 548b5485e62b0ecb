"""Plain data that every JSON reader takes: numbers that are not finite become the strings NaN, Infinity, -Infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

DIGITS = 6
"""How many significant digits of a number are written."""


def number(x: Any) -> float | int | str | None:
    """A number in a form that JSON can hold.

    Example:
        >>> number(1 / 3), number(float("inf")), number(7)
        (0.333333, 'Infinity', 7)
    """
    if x is None or isinstance(x, (bool, int)):
        return x
    if isinstance(x, np.integer):
        return int(x)
    x = float(x)
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "Infinity" if x > 0 else "-Infinity"
    rounded = float(f"{x:.{DIGITS}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def plain(x: Any) -> Any:
    """Nested dicts, lists and arrays in a form that JSON can hold."""
    if x is None or isinstance(x, (str, bool)):
        return x
    if isinstance(x, Mapping):
        return {str(key): plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(value) for value in x]
    if isinstance(x, np.ndarray) and x.ndim:
        return [plain(value) for value in x]
    return number(x)
