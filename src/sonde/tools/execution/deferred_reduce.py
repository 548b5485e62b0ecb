"""The handler of tools that reduce: small arrays stay whole until the program ends.

Reducing an array on the device saves memory and a copy, but makes the program longer: the compiler takes a fifth of a
second for the statistics of one site, so the sites of thirty layers take many times as long as the layers themselves.
So small arrays leave the program as they are and are reduced on the host, where nothing is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde.core import Extra, Pattern, Recording, Reduce, Site, Where, arrays_in

SMALL = 2**21
"""Up to how many bytes the arrays of a site are kept whole."""
SMALL_IN_LOOPS = 2**26
"""Up to how many bytes they are kept whole in all iterations together."""
ROOM = 2**28
"""How many bytes of larger arrays, up to `SMALL_IN_LOOPS` each, are kept whole in all."""


WHOLE = "whole"
"""The name of an array itself, among its moments: they are computed later."""


def whole_parts(value: Any) -> list[dict[str, Any]]:
    """The arrays of a pytree themselves, in place of their moments."""
    return [
        {} if jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended) else {WHOLE: jnp.asarray(x)} for x in arrays_in(value)
    ]


class KeepingSmall(Recording):
    """Records the arrays of a site whole if they are small, and otherwise what a `reduce` function makes of them.

    Attributes:
        large: The function for large arrays.
        small: The function for small ones, which keeps them.
    """

    knows_loops = True

    def __init__(self, patterns: tuple[Pattern, ...], *, large: Reduce, small: Reduce, **kwargs: Any) -> None:
        super().__init__(patterns, reduce=large, **kwargs)
        self.large, self.small = large, small
        # Shared with all children: the room that is left for larger arrays, and the sites that use some of it.
        self._room = [ROOM]
        self._roomy: dict[Site, bool] = {}
        self.key = ("keeping small", self.key)

    def record(self, arrays: list[Any], where: Where, extras: dict[Extra, Any]) -> None:
        """Records the arrays, or the results of `large`."""
        self.reduce = self.small if self.keeps(arrays, where) else self.large
        super().record(arrays, where, extras)

    def keeps(self, arrays: Sequence[Any], where: Where) -> bool:
        """Whether these arrays are small, or there is room for them. The same for a value and all its gradients."""
        size = sum(x.size * getattr(x.dtype, "itemsize", 8) for x in arrays)
        # Of a `while_loop`, whose length is not known, the last iteration alone is recorded.
        in_loops = size * math.prod(loop.length for loop in where.loops if loop.length is not None)
        if in_loops > SMALL_IN_LOOPS:
            return False
        if size <= SMALL:
            return True
        if where.marked not in self._roomy:
            self._room[0] -= in_loops
            self._roomy[where.marked] = self._room[0] >= 0
        return self._roomy[where.marked]
