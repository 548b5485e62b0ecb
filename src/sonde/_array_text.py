"""How arrays and places are written in messages and tables: `float32[2,3]`, `h[0,1]`, `1.5 KB`, `model.py:7`."""

from __future__ import annotations

import re
import sys
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


def short_place(source: str) -> str:
    """A line of a file without the folder, as in `model.py:7`; of a cell of a notebook, as in `In[2]:7`."""
    filename, colon, line = source.rpartition(":")
    return f"{cell_of(filename) or filename.rpartition('/')[2]}{colon}{line}"


def cell_of(filename: str) -> str | None:
    """The cell of a notebook that code with this file name was typed in, as in `In[2]`; None if it was in none."""
    in_prompt = re.match(r"<ipython-input-(\d+)-", filename)
    if in_prompt:
        return f"In[{in_prompt[1]}]"
    # The cells of Jupyter have the names of files that do not exist; IPython knows their numbers.
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(filename)
    return named[1] if named else None


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
