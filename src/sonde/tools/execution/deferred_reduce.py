"""The handler of tools that reduce: small arrays stay whole until the program ends.

Reducing an array on the device saves memory and a copy, but makes the program longer: the compiler takes a fifth of a
second for the statistics of one site, so the sites of thirty layers take many times as long as the layers themselves.
So small arrays leave the program as they are and are reduced on the host, where nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from sonde.core import Extra, Pattern, Recording, Reduce, Site, View

SMALL = 2**21
"""Up to how many bytes the arrays of a site are kept whole."""
SMALL_IN_LOOPS = 2**26
"""Up to how many bytes they are kept whole in all iterations together."""
ROOM = 2**28
"""How many bytes of larger arrays, up to `SMALL_IN_LOOPS` each, are kept whole in all."""


class KeepingSmall(Recording):
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
        # Shared with all children: the room that is left for larger arrays, and the sites that use some of it.
        self._room = [ROOM]
        self._roomy: dict[Site, bool] = {}
        self.key = ("keeping small", self.key)

    def entering(self, length: int | None = None) -> Self:
        """The handler whose child is about to run; in a loop, it knows how long the surrounding loops are."""
        new = super().entering(length)
        if length is not None and self.iterations is not None:
            new.iterations = self.iterations * length
            new.key = None if self.key is None else (self.key, "iterations", length)
        return new

    def record(self, arrays: list[Any], site: Site, path: str, view: View, extras: dict[Extra, Any]) -> None:
        """Records the arrays, or the results of `large`."""
        self.reduce = self.small if self.keeps(arrays, site) else self.large
        super().record(arrays, site, path, view, extras)

    def keeps(self, arrays: Sequence[Any], site: Site) -> bool:
        """Whether these arrays are small, or there is room for them. The same for a value and all its gradients."""
        size = sum(x.size * getattr(x.dtype, "itemsize", 8) for x in arrays)
        if self.iterations is None or size * self.iterations > SMALL_IN_LOOPS:
            return False
        if size <= SMALL:
            return True
        if site not in self._roomy:
            self._room[0] -= size * self.iterations
            self._roomy[site] = self._room[0] >= 0
        return self._roomy[site]
