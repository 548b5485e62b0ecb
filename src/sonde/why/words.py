"""Numbers in words, for people: types, ranges, counts."""

from __future__ import annotations

import numpy as np

from sonde.programs.flat import Equation
from sonde.why.walk import as_floats

_SIGNS = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "rem": "%"}
_SIGNS |= {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}


def type_text(value: np.ndarray) -> str:
    """The type of an array, as in `float32[4,2]`."""
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def array_text(value: np.ndarray) -> str:
    """What is in an array: the number itself if it is one, else type, range, zeros, NaNs and Infs."""
    if value.ndim == 0:
        return f"{value.dtype} {number_text(value)}"
    if value.dtype.kind not in "fcV":
        return type_text(value)
    if not value.size:
        return f"{type_text(value)}, empty"
    numbers = as_floats(value)
    parts = []
    size = np.abs(numbers) if numbers.dtype.kind == "c" else numbers
    finite = size[np.isfinite(size)]
    zeros = int(np.sum(numbers == 0))
    if finite.size:
        low, high = finite.min(), finite.max()
        if zeros == value.size:
            parts.append("all zeros")
        elif low == high:
            parts.append(f"all {low:.6g}" if finite.size == value.size else f"{low:.6g}")
        else:
            name = "absolute values " if numbers.dtype.kind == "c" else ""
            parts.append(f"{name}{low:.6g} to {high:.6g}")
            if zeros:
                parts.append(f"{zeros} zero{'s' * (zeros != 1)}")
    for count, name in ((np.isnan(numbers).sum(), "NaN"), (np.isinf(numbers).sum(), "Inf")):
        if count:
            parts.append(f"all {name}" if count == value.size else f"{count} {name}")
    return f"{type_text(value)}, {', '.join(parts)}"


def number_text(value: np.ndarray) -> str:
    """A single number."""
    number = as_floats(value)
    if number.dtype.kind == "f":
        return f"{float(number):.6g}"
    return str(number[()])


def element_text(equation: Equation, elements: list[np.ndarray | None]) -> str:
    """The operation with the numbers that made one element, as in `0 / 0`; empty if it takes more than some numbers."""
    if any(x is None for x in elements) or not elements:
        return ""
    numbers = [number_text(np.asarray(x)) for x in elements]
    sign = _SIGNS.get(equation.name)
    if sign is not None and len(numbers) == 2:
        return f"{numbers[0]} {sign} {numbers[1]}"
    if equation.name == "integer_pow":
        return f"{numbers[0]} ** {equation.params['y']}"
    if equation.name == "convert_element_type":
        return f"{numbers[0]} to {np.dtype(equation.params['new_dtype']).name}"
    return f"{equation.name}({', '.join(numbers)})"
