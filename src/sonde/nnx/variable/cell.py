"""Where a Variable keeps its value.

The cell is separate from the Variable because `nnx.jit` reads and writes thousands of values per call. All cells have
the same class, are small and have no hooks, so access is as cheap as Python allows. With one-item lists as cells, whose
item is in a second block of memory, a train step takes two percent longer.
"""

from __future__ import annotations

from typing import Any


class Cell:
    """Holds a value.

    Attributes:
        value: The value.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value
