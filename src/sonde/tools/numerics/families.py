"""Families of numbered layers, such as `blocks/*`: their order, `blocks/2` before `blocks/10`, and their outliers."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

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


@dataclasses.dataclass(frozen=True, slots=True)
class Outlier:
    """A member of a family that is far from the others.

    Attributes:
        index: Its position among the members.
        ratio: Its number, divided by the median of the others.
        usual: That median.
    """

    index: int
    ratio: float
    usual: float


def find_outlier(numbers: Sequence[float], least_ratio: float, spread: float) -> Outlier | None:
    """The member whose positive number is far from those of the others; None if there is none.

    Args:
        numbers: A number of each member.
        least_ratio: How many times larger or smaller than the median of the others it must be.
        spread: How many times farther from it than any of the others, in logarithms.

    Example:
        >>> find_outlier([1.0, 1.1, 30.0, 0.9], 4, 2.5).index
        2
        >>> find_outlier([1.0, 5.0, 30.0, 0.2], 4, 2.5) is None
        True
    """
    sizes = np.log(np.maximum(numbers, 1e-300))
    best = None
    for index in range(len(sizes)):
        others = np.delete(sizes, index)
        median = float(np.median(others))
        distance = abs(float(sizes[index]) - median)
        farthest = float(np.max(np.abs(others - median)))
        if distance > max(math.log(least_ratio), spread * farthest) and (best is None or distance > best[0]):
            best = distance, Outlier(index, math.exp(float(sizes[index]) - median), math.exp(median))
    return None if best is None else best[1]
