"""Types of keys and paths, and a small helper, under the names that Flax's files have for them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeAlias

from sonde.nnx.filters import PathParts as PathParts

#: A key of a path: the name of an attribute, or an index.
Key: TypeAlias = Hashable


def first_from(*values: Any, error_msg: str) -> Any:
    """The first value that is not None.

    Raises:
        ValueError: all are None; with `error_msg` as its message.

    Example:
        >>> first_from(None, 0, 2, error_msg="give a number")
        0
    """
    for value in values:
        if value is not None:
            return value
    raise ValueError(error_msg)
