"""Objects that differ from all others, their copies included: the names of `nnx.ids`."""

from __future__ import annotations

from typing import Any, Self


class UUID:
    """Equal only to itself; a copy is a different UUID.

    Example:
        >>> import copy
        >>> from sonde.nnx import ids
        >>> one = ids.uuid()
        >>> one == one, one == ids.uuid(), one == copy.copy(one)
        (True, False, False)
    """

    def __copy__(self) -> Self:
        return type(self)()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()


def uuid() -> UUID:
    """Makes a new UUID."""
    return UUID()
