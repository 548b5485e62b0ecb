"""How arrays are written in messages and tables: `float32[2,3]`, `h[0,1]`, `1,500 (6.0 KB)`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

_UNITS = ("B", "KB", "MB", "GB", "TB")


def indexed(name: object, index: Iterable[int | str]) -> str:
    """A name followed by an index, as in `h[0,1]`."""
    return f"{name}[{','.join(map(str, index))}]"


def describe(x: Any) -> str:
    """Dtype and shape of an array, as in `float32[2,3]`; anything else by its type and `repr`."""
    shape = getattr(x, "shape", None)
    return f"{type(x).__name__} {x!r}" if shape is None else indexed(x.dtype, shape)


def size_and_bytes(tree: Any) -> tuple[int, int]:
    """How many elements the arrays in a pytree have, and how many bytes."""
    size = n_bytes = 0
    for leaf in jax.tree.leaves(tree):
        shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if shape is None or dtype is None:
            continue
        elements = int(np.prod(shape))
        size += elements
        n_bytes += elements * dtype.itemsize
    return size, n_bytes


def human_size(n_bytes: float) -> str:
    """A size in bytes with a unit of thousands, as in `1.5 KB`."""
    unit, *larger = _UNITS
    while n_bytes > 1000 and larger:
        n_bytes, unit, *larger = n_bytes / 1000, *larger
    return f"{n_bytes:,.0f} B" if unit == "B" else f"{n_bytes:,.1f} {unit}"
