"""Fingerprints: a few numbers for an array that transposing and reshaping leave alone, and a search among them."""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from typing import Any, Generic, TypeVar

import numpy as np

from sonde.port.difference import blocks, epsilon, wide

T = TypeVar("T")
_POWERS = np.array([2, 1, 1, 3, 4])  # of the sums of a fingerprint


@dataclasses.dataclass(frozen=True, eq=False)
class Print:
    """A fingerprint.

    Attributes:
        size: How many elements there are.
        finite: How many of them are finite: masks of `-inf` differ in that.
        numbers: Root mean square, mean, other moments, smallest and largest element.
        telling: Whether equal fingerprints mean something: constants are equal by chance.
        epsilon: The precision of the dtype.
    """

    size: int
    finite: int
    numbers: np.ndarray
    telling: bool
    epsilon: float

    @functools.cached_property
    def scale(self) -> float:
        """The root mean square."""
        return float(self.numbers[0])

    def apart(self, other: Print) -> float:
        """How far apart two fingerprints are, relative to the scale; infinite for arrays of other sizes."""
        if self.size != other.size or self.finite != other.finite:
            return np.inf
        scale = max(self.scale, other.scale)
        return float(np.abs(self.numbers - other.numbers).max() / scale) if scale else 0.0


def print_of(array: Any) -> Print:
    """The fingerprint of an array."""
    array = np.asarray(array)
    finite, ends = 0, (np.inf, -np.inf)
    sums, scale = np.zeros(5), 1.0
    for (block,) in blocks(array):
        x = wide(block)
        # Of complex numbers only sizes are looked at; squares of large integers need floating point.
        x = np.abs(x) if np.iscomplexobj(x) else x.astype(np.float64, copy=False)
        with np.errstate(invalid="ignore", over="ignore"):
            total = x.sum()
        if not np.isfinite(total):
            x = x[np.isfinite(x)]
        if not x.size:
            continue
        finite += x.size
        ends = min(ends[0], float(x.min())), max(ends[1], float(x.max()))
        largest = max(abs(ends[0]), abs(ends[1]))
        # Scaled where powers would overflow or vanish.
        if largest and not scale * 1e-40 < largest < scale * 1e40:
            sums *= (scale / largest) ** _POWERS
            scale = largest
        x = x if scale == 1.0 else x / scale
        square = x * x
        sums += x @ x, x.sum(), np.abs(x).sum(), square @ x, square @ square
    if not finite:
        return Print(array.size, 0, np.zeros(7), False, epsilon(array))
    means = sums / finite
    # The third moment relative to the second: of symmetric numbers a cube root would be rounding, and large.
    third = means[3] / means[0] if means[0] else 0.0
    moments = [np.sqrt(means[0]), means[1], means[2], third, means[4] ** 0.25]
    first = wide(array.ravel()[:1000])
    first = first[np.isfinite(first)]
    telling = len(np.unique(first)) > 2 if array.size > 1 else bool(first[0] not in (0, 1, -1))
    numbers = np.array([*[scale * m for m in moments], *ends])
    return Print(array.size, finite, numbers, telling and array.dtype.kind not in "bui", epsilon(array))


class Prints(Generic[T]):
    """Fingerprints of things, to be searched."""

    def __init__(self, tolerance: float = 16.0) -> None:
        self.tolerance = tolerance  # in units of the coarser precision
        self._by_size: dict[tuple[int, int], list[tuple[Print, T, float]]] = defaultdict(list)

    def add(self, fingerprint: Print, thing: T, noise: float = 0.0) -> None:
        """Adds a thing. `noise` is how far rounding alone moves its fingerprint."""
        self._by_size[fingerprint.size, fingerprint.finite].append((fingerprint, thing, noise))

    def equal_to(self, fingerprint: Print, noise: float = 0.0) -> list[T]:
        """The things whose fingerprint is the same but for rounding, in the order in which they were added.

        `noise` is how far rounding alone moves this fingerprint; that of each thing counts if it is more. Nothing is
        equal to a constant, and to what has less than three different elements.
        """
        if not fingerprint.telling:
            return []
        return [
            thing
            for other, thing, own_noise in self._by_size.get((fingerprint.size, fingerprint.finite), ())
            if self._is_close(other, fingerprint, max(noise, own_noise))
        ]

    def repeats_of(self, fingerprint: Print) -> list[T]:
        """The things that have the same numbers a whole number of times more often, or less often."""
        if not fingerprint.telling or fingerprint.size == 1:
            return []
        things: list[T] = []
        for (size, finite), known in self._by_size.items():
            less, more = sorted((size, fingerprint.size))
            is_multiple = less > 1 and less < more and more % less == 0
            if is_multiple and finite * fingerprint.size == fingerprint.finite * size:
                resized = dataclasses.replace(fingerprint, size=size, finite=finite)
                things += [thing for other, thing, noise in known if self._is_close(other, resized, noise)]
        return things

    def _is_close(self, other: Print, fingerprint: Print, noise: float) -> bool:
        tolerance = max(self.tolerance * max(other.epsilon, fingerprint.epsilon), noise)
        own, its = fingerprint.scale, other.scale
        if abs(own - its) > tolerance * max(own, its):  # of most, and much quicker
            return False
        return other.telling and other.apart(fingerprint) <= tolerance
