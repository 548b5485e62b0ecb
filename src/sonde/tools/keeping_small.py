"""The handler of tools that reduce: small arrays stay whole until the program is over.

To reduce an array where it is saves memory and a copy. It also makes the program longer: a compiler takes a fifth of a
second for the statistics of one site, which for the sites of thirty layers is many times what it takes for the layers.
So arrays that are small leave the program as they are, and are reduced on the host, where nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from sonde.core.collect import Collect, Reduce
from sonde.core.item import Extra
from sonde.core.path import Pattern
from sonde.core.site import Site, View

SMALL = 2**21
"""Up to how many bytes the arrays of a site are kept whole."""
SMALL_IN_LOOPS = 2**26
"""Up to how many bytes they are kept whole in all iterations together."""


class KeepingSmall(Collect):
    """Records the arrays of a site whole if they are small, and otherwise what a `reduce` function makes of them.

    Attributes:
        large: The function for large arrays.
        small: The function for small ones, which keeps them.
        iterations: How many iterations of all loops around are recorded; None where that is not known.
    """

    def __init__(self, patterns: tuple[Pattern, ...], *, large: Reduce, small: Reduce, **kwargs: Any) -> None:
        super().__init__(patterns, reduce=large, **kwargs)
        self.large, self.small = large, small
        self.iterations: int | None = 1
        self.key = ("keeping small", self.key)

    def entering(self, length: int | None = None) -> Self:
        """The handler of which a child is about to run; in a loop, it knows how long the loops around are."""
        new = super().entering(length)
        if length is not None and self.iterations is not None:
            new.iterations = self.iterations * length
            new.key = None if self.key is None else (self.key, "iterations", length)
        return new

    def record(self, arrays: list[Any], site: Site, path: str, view: View, extras: dict[Extra, Any]) -> None:
        """Remembers the arrays, or what becomes of them."""
        self.reduce = self.small if self.keeps(arrays) else self.large
        super().record(arrays, site, path, view, extras)

    def keeps(self, arrays: Sequence[Any]) -> bool:
        """Whether these arrays are small."""
        size = sum(x.size * getattr(x.dtype, "itemsize", 8) for x in arrays)
        return self.iterations is not None and size <= SMALL and size * self.iterations <= SMALL_IN_LOOPS
