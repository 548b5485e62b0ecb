"""Order of numbered layers: `blocks/2` comes before `blocks/10`; both are members of the family `blocks/*`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")
_DIGITS = re.compile(r"(\d+)")


def natural(path: str) -> tuple[Any, ...]:
    """A key that sorts numbers inside paths as numbers.

    Example:
        >>> sorted(["blocks/10", "blocks/9", "blocks"], key=natural)
        ['blocks', 'blocks/9', 'blocks/10']
    """
    pieces = _DIGITS.split(path)
    return tuple((int(x), "") if i % 2 else (-1, x) for i, x in enumerate(pieces))


def family(path: str) -> str:
    """A path with its first number replaced by a star; the path itself if it has none.

    The first number is that of the outermost layer: `blocks/3/mlp/fc1` belongs to the family `blocks/*/mlp/fc1`.

    Example:
        >>> family("blocks/3/mlp/fc1"), family("Dense_12"), family("loss")
        ('blocks/*/mlp/fc1', 'Dense_*', 'loss')
    """
    return _DIGITS.sub("*", path, count=1)


def layer(path: str) -> str:
    """A path up to its first number.

    Example:
        >>> layer("blocks/3/mlp/fc1"), layer("loss")
        ('blocks/3', 'loss')
    """
    found = _DIGITS.search(path)
    return path[: found.end()] if found else path


def families(named: Iterable[tuple[str, T]]) -> dict[str, list[tuple[str, T]]]:
    """Entries with a number in their path, by family, each in natural order."""
    found: dict[str, list[tuple[str, T]]] = {}
    for path, x in named:
        if family(path) != path:
            found.setdefault(family(path), []).append((path, x))
    return {name: sorted(members, key=lambda m: natural(m[0])) for name, members in found.items()}
