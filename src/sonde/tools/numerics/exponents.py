"""Counts of floats on the host, by sign and exponent.

The bits in front of the mantissa say between which powers of two a number is, and whether it is finite. One pass over a
row counts them; sums of these counts give a histogram over powers of two, the number of NaNs and infinities, and the
number of very small numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_FEW = 8
_LONG = 4096


def float_type(*dtypes: Any) -> np.dtype:
    """The type in which statistics of arrays of these types are computed: double precision if one of them has it."""
    return np.dtype(np.float64 if {np.dtype(np.float64), np.dtype(np.complex128)} & set(dtypes) else np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class Exponents:
    """How many numbers of a row have each sign and exponent.

    Attributes:
        counts: By sign (plus, minus) and exponent as it is stored.
    """

    counts: np.ndarray

    @classmethod
    def of(cls, row: np.ndarray) -> Exponents:
        """Counts the numbers of a contiguous row of float32 or float64."""
        wide = row.dtype == np.float64
        bits, shift, n = (np.uint64, 52, 2**12) if wide else (np.uint32, 23, 2**9)
        found = np.bincount((row.view(bits) >> bits(shift)).astype(np.intp), minlength=n)
        return cls(found.reshape(2, n // 2))

    @property
    def nonfinite(self) -> int:
        """How many are NaN or infinite."""
        return int(self.counts[:, -1].sum())

    @property
    def smallest(self) -> int:
        """How many are zero or subnormal."""
        return int(self.counts[:, 0].sum())

    def below(self, power: int) -> int:
        """How many are zero or smaller than a power of two that is not subnormal."""
        one = self.counts.shape[1] // 2 - 1  # the exponent of 1 as it is stored
        return int(self.counts[:, : one + power].sum())

    def histogram(self, most: int) -> np.ndarray:
        """How many of the finite numbers are in each bin.

        Args:
            most: The bins are bounded by the powers of two from the inverse of this one up to it, on both sides of
                zero. Larger numbers are in the outermost bins, smaller ones in the middle bin.
        """
        bins = 2 * (2 * most + 1) + 1
        # Weights are floats, which are exact up to 2^53.
        found = np.bincount(_bins_of(self.counts.shape[1], most), self.counts[:, :-1].reshape(-1), minlength=bins)
        return found.astype(np.int32)


@dataclasses.dataclass(frozen=True, slots=True)
class HostRows:
    """An array on the host as rows of floats.

    Statistics of long rows are computed row by row, so that a row stays in the cache. Those of many short rows, as maps
    over examples and units make, are computed together: a call for each would take longer than the numbers.

    Attributes:
        rows: Rows by numbers: float32, or float64 if the array is. For complex numbers, the magnitude.
        front: The axes of the array in front of a row.
        shape: The shape of a row in the array.
        exponents: How many numbers of each row have each exponent; none if rows are not looked at one by one.
    """

    rows: np.ndarray
    front: tuple[int, ...]
    shape: tuple[int, ...]
    exponents: tuple[Exponents, ...]

    @classmethod
    def of(cls, array: np.ndarray, lead: int) -> HostRows:
        """The rows of an array with some axes of loops and examples in front."""
        if np.issubdtype(array.dtype, np.complexfloating):
            array = np.abs(array)
        x = array.astype(float_type(array.dtype), order="C", copy=False)
        front, shape = x.shape[:lead], x.shape[lead:]
        rows = x.reshape(math.prod(front), math.prod(shape))
        one_by_one = x.size and (len(rows) <= _FEW or rows.shape[1] >= _LONG)
        return cls(rows, front, shape, tuple(map(Exponents.of, rows)) if one_by_one else ())

    @property
    def array(self) -> np.ndarray:
        """The array."""
        return self.rows.reshape(*self.front, *self.shape)

    def together(self, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The results of all rows, as arrays with the axes in front."""
        return {
            name: np.reshape([row[name] for row in found], (*self.front, *np.shape(one)))
            for name, one in found[0].items()
        }


@functools.cache
def _bins_of(n: int, most: int) -> np.ndarray:
    """The bin of every sign and finite exponent."""
    power = np.arange(n - 1) - (n // 2 - 1)
    step = np.clip(power, -most - 1, most) + most + 1
    middle = 2 * most + 1
    return np.concatenate([middle + step, middle - step])
