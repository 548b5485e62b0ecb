"""Where a Variable keeps its value.

Apart from the Variable, because `nnx.jit` reads and writes thousands of values in a call: cells are all of one class,
small, and have no hooks, which costs the least that Python allows. With a list of one value, whose item is in a second
piece of memory, a train step takes two percent longer.
"""

from __future__ import annotations

from typing import Any


class Cell:
    """Holds a value.

    Attributes:
        value: the value.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value
