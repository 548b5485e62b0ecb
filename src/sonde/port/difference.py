"""How far apart two arrays are, and whether that is more than rounding explains."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

_SMALL = 1e-4  # elements below this part of the largest are also looked at alone: a mask of -1e9 hides all others
_BLOCK = 1 << 13  # elements: small enough that BLAS starts no threads
_PEAK = 4  # how many times the limit of the norm a single element may be off, relative to the largest


@dataclasses.dataclass(frozen=True, slots=True)
class Distance:
    """How far apart two arrays of one shape are.

    Attributes:
        max_abs: The largest difference of two finite elements.
        max_rel: That difference, relative to the largest finite element of the second.
        apart: The norm of the difference of the finite elements.
        size: The norm of the finite elements of the second.
        largest: The largest of them.
        small_apart: As `apart`, for the elements that are small in both.
        small_size: As `size`, for these.
        small_part: How large a part of all elements these are.
        broken: Whether one array has a finite element where the other has none.
    """

    max_abs: float
    max_rel: float
    apart: float
    size: float
    largest: float
    small_apart: float
    small_size: float
    small_part: float
    broken: bool

    @property
    def norm(self) -> float:
        """The norm of the difference, relative to that of the second array."""
        return np.inf if self.broken else _ratio(self.apart, self.size)

    def within(self, limit: Limit) -> bool:
        """Whether the arrays agree."""
        if self.broken:
            return limit.any_break
        # Small elements have their share of the noise of all.
        noise = max(limit.small_apart, limit.apart * self.small_part**0.5)
        small = self.small_apart <= max(limit.relative * self.small_size, noise)
        # One wrong element among many hardly moves the norm.
        no_outlier = self.max_abs <= max(_PEAK * limit.relative * self.largest, limit.largest)
        return small and no_outlier and self.apart <= max(limit.relative * self.size, limit.apart)


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """How far apart arrays may be that agree.

    Attributes:
        relative: The norm of the difference, relative to that of the second array.
        apart: The norm of the difference; the larger of both limits counts.
        small_apart: The same for small elements.
        largest: How far apart two elements may be; several times `relative` of the largest in any case.
        any_break: Whether rounding alone makes elements NaN or infinite.
    """

    relative: float
    apart: float = 0.0
    small_apart: float = 0.0
    largest: float = 0.0
    any_break: bool = False

    def or_more(self, noise: Distance, times: float) -> Limit:
        """The larger of this limit and several times a distance that rounding explains."""
        return Limit(
            self.relative,
            max(self.apart, times * noise.apart),
            max(self.small_apart, times * noise.small_apart),
            max(self.largest, 2 * times * noise.max_abs),
            self.any_break or noise.broken,
        )

    def norm(self, size: float) -> float:
        """The limit relative to the norm of an array."""
        return max(self.relative, _ratio(self.apart, size))


def _ratio(apart: float, size: float) -> float:
    return 0.0 if apart == 0 else apart / size if size else np.inf


def wide(x: np.ndarray) -> np.ndarray:
    """An array in the widest dtype of its kind, in which differences are exact enough."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return x.astype(np.complex128)
    return x if x.dtype.kind in "iu" and x.dtype.itemsize > 4 else np.asarray(x, np.float64)


def blocks(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """The elements of arrays of one size, in blocks that stay in the cache of the processor."""
    flat = [x.ravel() for x in arrays]
    for start in range(0, flat[0].size, _BLOCK):
        yield tuple(x[start : start + _BLOCK] for x in flat)


def distance(a: np.ndarray, b: np.ndarray) -> Distance:
    """The distance of two arrays of one shape; NaN equals NaN."""
    return _quick_distance(a, b) or _careful_distance(a, b)


def _quick_distance(a: np.ndarray, b: np.ndarray) -> Distance | None:
    """The distance in single precision, which is enough for arrays of it; None if numbers are special or extreme."""
    if not (a.dtype == b.dtype == np.float32) or not a.size:
        return None
    with np.errstate(all="ignore"):
        largest = max(float(max(one.max(), -one.min())) for (one,) in blocks(b))
        if not 1e-10 < largest < 1e15:
            return None
        most, apart, size, small_apart, small_size, n_small = 0.0, 0.0, 0.0, 0.0, 0.0, 0
        for one, other in blocks(a, b):
            unlike = one - other
            most = max(most, float(max(unlike.max(), -unlike.min())))
            apart += float(unlike @ unlike)
            size += float(other @ other)
            small = np.maximum(np.abs(one), np.abs(other)) < np.float32(_SMALL * largest)
            if n := int(np.count_nonzero(small)):
                n_small += n
                small_apart += float(unlike[small] @ unlike[small])
                small_size += float(np.sum(np.square(other[small], dtype=np.float64)))
    # Any NaN or infinity is in the sums; squares of small numbers vanish.
    if not np.isfinite(apart + size) or 0 < most < 1e-17:
        return None
    return Distance(
        max_abs=most,
        max_rel=most / largest,
        apart=apart**0.5,
        size=size**0.5,
        largest=largest,
        small_apart=small_apart**0.5,
        small_size=small_size**0.5,
        small_part=n_small / a.size,
        broken=False,
    )


def _careful_distance(a: np.ndarray, b: np.ndarray) -> Distance:
    largest = max((_largest(one) for (one,) in blocks(b)), default=0.0)
    most, broken, n_small = 0.0, False, 0
    sums = np.zeros(4)  # of squares: the difference, the second array, and both for small elements
    scale = 0.0  # of the differences, so that their squares neither overflow nor vanish
    for one, other in blocks(a, b):
        apart, finite, is_broken = _apart(one, other)
        broken |= is_broken
        top = float(apart.max(initial=0.0))
        most = max(most, top)
        if top > scale:
            sums[[0, 2]] *= (scale / top) ** 2
            scale = top
        size = np.where(finite, np.abs(wide(other)), 0).astype(np.float64)
        small = np.maximum(size, np.where(finite, np.abs(wide(one)), 0)) < _SMALL * largest
        apart /= scale or 1.0
        size /= largest or 1.0
        sums[:2] += apart @ apart, size @ size
        if n := int(np.count_nonzero(small)):
            n_small += n
            sums[2:] += apart[small] @ apart[small], size[small] @ size[small]
    norms = np.sqrt(sums) * [scale, largest, scale, largest]
    return Distance(
        max_abs=most,
        max_rel=most / largest if largest else most,
        apart=float(norms[0]),
        size=float(norms[1]),
        largest=largest,
        small_apart=float(norms[2]),
        small_size=float(norms[3]),
        small_part=n_small / a.size if a.size else 0.0,
        broken=broken,
    )


def _largest(x: np.ndarray) -> float:
    size = np.abs(wide(x)).astype(np.float64)
    return float(size.max(initial=0.0, where=np.isfinite(size)))


def beyond_norm(a: np.ndarray, b: np.ndarray, limit: Limit, size: float) -> int:
    """How many elements are further apart than a limit allows on average; `size` is the norm of the second array."""
    allowed = max(limit.relative * size, limit.apart) / max(np.sqrt(b.size), 1.0)
    beyond = 0
    for one, other in blocks(a, b):
        apart, finite, _ = _apart(one, other)
        beyond += int(np.sum((apart > allowed) | (~finite & ~_same_special(one, other))))
    return beyond


def beyond_each(a: np.ndarray, b: np.ndarray, rtol: float, atol: float) -> int:
    """How many elements are further apart than `atol + rtol * abs(b)`."""
    apart, finite, _ = _apart(a, b)
    size = np.where(finite, np.abs(wide(b)), 0)
    return int(np.sum(np.where(finite, apart > atol + rtol * size, ~_same_special(a, b))))


def _apart(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """The distance of each pair of finite elements, which pairs are finite, whether one alone is not."""
    unequal = a != b  # integers may be too large for floating point
    x, y = wide(a), wide(b)
    finite = np.isfinite(x) & np.isfinite(y)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(finite & unequal, np.abs(x.astype(y.dtype) - y), 0).astype(np.float64)
    return apart, finite, bool(np.any(~finite & ~_same_special(a, b)))


def _same_special(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    x, y = wide(a), wide(b)
    return (x == y) | (np.isnan(x) & np.isnan(y))


def epsilon(*arrays: np.ndarray) -> float:
    """The precision of the coarsest dtype; 0 if none is floating point."""
    kinds = [x.dtype for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact)]
    return max((float(jnp.finfo(kind).eps) for kind in kinds), default=0.0)


def coarsest(dtypes: Iterable[Any]) -> Any:
    """The floating-point dtype of the lowest precision; None if there is none."""
    kinds = [np.dtype(dtype) for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact)]
    return max(kinds, key=lambda kind: float(jnp.finfo(kind).eps), default=None)
