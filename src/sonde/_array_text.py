"""How arrays and places are written in messages and tables: `float32[2,3]`, `h[0,1]`, `1.5 KB`, `model.py:7`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Any

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
    """A line of code as texts and pages show it, without the folders in which this machine has the file.

    A file below the working folder has its path from there, a file of a package that of its import, a cell of a
    notebook its number, as in `In[2]:7`.

    Args:
        source: A file, or file and line as `file:line`. More may follow the line.

    Example:
        >>> short_place("<cell>:3"), short_place("/somewhere/else/model.py:7 in loss")
        ('<cell>:3', 'model.py:7 in loss')
    """
    filename, colon, line = source.rpartition(":") if ":" in source else (source, "", "")
    if cell := cell_of(filename):
        return f"{cell}{colon}{line}"
    if not os.path.isabs(filename):
        return source
    imported = sorted({os.path.abspath(folder) for folder in sys.path}, key=len, reverse=True)
    packages = [folder for folder in imported if folder.endswith("-packages")]
    # An environment is often below the working folder: its packages come first.
    for folder in (*packages, os.getcwd(), *imported):
        if folder != os.sep and filename.startswith(folder + os.sep):
            return f"{os.path.relpath(filename, folder)}{colon}{line}"
    return f"{os.path.basename(filename)}{colon}{line}"


def cell_of(filename: str) -> str | None:
    """The cell of a notebook that code with this file name was typed in, as in `In[2]`; None if it was in none."""
    in_prompt = re.match(r"<ipython-input-(\d+)-", filename)
    if in_prompt:
        return f"In[{in_prompt[1]}]"
    if in_marimo := re.search(r"__marimo__cell_([^/\\]*?)_?\.py$", filename):
        return f"cell {in_marimo[1]}"
    # The cells of Jupyter have the names of files that do not exist; IPython knows their numbers.
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(filename)
    return named[1] if named else None


def size_and_bytes(tree: Any) -> tuple[int, int]:
    """How many elements the arrays in a pytree have, and how many bytes."""
    size = n_bytes = 0
    import jax  # late: places are described before JAX is imported

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


def counted(n: int, word: str) -> str:
    """A number with its noun.

    Example:
        >>> counted(1, "site"), counted(2, "site")
        ('1 site', '2 sites')
    """
    return f"{n:,} {word}{'s' * (n != 1)}"
