"""Fingerprints: a few numbers for an array that transposing and reshaping leave alone, and a search among them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any, Generic, TypeVar

import numpy as np

from sonde.port.difference import epsilon, wide

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
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

    @property
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
    x = wide(array).ravel()
    # Of complex numbers only sizes are looked at; squares of large integers need floating point.
    x = np.abs(x) if np.iscomplexobj(x) else x.astype(np.float64)
    x = x[np.isfinite(x)]
    if not x.size:
        return Print(array.size, 0, np.zeros(7), False, epsilon(array))
    size = np.abs(x)
    largest = size.max()
    # Scaled by the largest, so that powers neither overflow nor vanish.
    scaled = x / largest if largest else x
    square = scaled * scaled
    cube, fourth = float(np.mean(square * scaled)), float(np.mean(square * square))
    moments = [np.sqrt(square.mean()), scaled.mean(), np.abs(scaled).mean(), np.cbrt(cube), fourth**0.25]
    numbers = np.array([*[largest * m for m in moments], x.min(), x.max()])
    telling = (x.size > 1 and len(np.unique(x[:1000])) > 2) or (array.size == 1 and bool(x[0] not in (0, 1, -1)))
    return Print(array.size, x.size, numbers, bool(telling) and array.dtype.kind not in "bui", epsilon(array))


class Prints(Generic[T]):
    """Fingerprints of things, to be searched."""

    def __init__(self, tolerance: float = 16.0) -> None:
        self.tolerance = tolerance  # in units of the coarser precision
        self._by_size: dict[tuple[int, int], list[tuple[Print, T, float]]] = defaultdict(list)

    def add(self, fingerprint: Print, thing: T, noise: float = 0.0) -> None:
        """Adds a thing. `noise` is how far rounding alone moves its fingerprint."""
        self._by_size[fingerprint.size, fingerprint.finite].append((fingerprint, thing, noise))

    def equal_to(self, fingerprint: Print) -> list[T]:
        """The things whose fingerprint is the same but for rounding, in the order in which they were added.

        Nothing is equal to a constant, and to what has less than three different elements.
        """
        if not fingerprint.telling:
            return []
        return [
            thing
            for other, thing, noise in self._by_size.get((fingerprint.size, fingerprint.finite), ())
            if self._is_close(other, fingerprint, noise)
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
        return other.telling and other.apart(fingerprint) <= tolerance
