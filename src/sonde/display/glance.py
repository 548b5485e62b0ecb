"""What can be seen of an array at a glance: its range, what is wrong with it, a histogram, a small picture.

Numbers are exact. Large arrays are reduced where they are; only the histogram and the picture are of a sample.
"""

from __future__ import annotations

import base64
import dataclasses
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax

_ON_HOST = 4_000_000  # elements; larger arrays are reduced on their device
_BINS = 14
_MOST_PIXELS = (48, 96)
_BARS = "▁▂▃▄▅▆▇█"


@dataclasses.dataclass(frozen=True, slots=True)
class Glance:
    """What an array is like.

    Attributes:
        low: The smallest finite number; None if there is none.
        high: The largest finite number.
        nans: How many elements are NaN.
        infs: How many are infinite.
        zeros: Whether all elements are zero.
        dead: How many units, along the last axis, are zero in every row.
        units: How many units there are; 0 if there is only one row.
        bins: A histogram of the finite numbers, or of a sample of them.
    """

    low: float | None
    high: float | None
    nans: int
    infs: int
    zeros: bool
    dead: int
    units: int
    bins: tuple[int, ...]

    @property
    def alarm(self) -> str:
        """What is wrong, in a few words; empty if nothing is."""
        said = [f"{self.nans:,} NaN"] if self.nans else []
        said += [f"{self.infs:,} Inf"] if self.infs else []
        if self.zeros:
            said.append("all zero")
        elif self.dead:
            said.append(f"{self.dead:,} of {self.units:,} units dead")
        return ", ".join(said)

    @property
    def is_broken(self) -> bool:
        """Whether some elements are not finite."""
        return bool(self.nans or self.infs)

    @property
    def range(self) -> str:
        """The smallest and the largest finite number."""
        if self.low is None or self.high is None:
            return ""
        return f"{self.low:.3g}" if self.low == self.high else f"{self.low:.3g} to {self.high:.3g}"


def bars(bins: Sequence[int]) -> str:
    """A histogram as text."""
    most = max(bins, default=0)
    return "".join(_BARS[-(-n * (len(_BARS) - 1) // most)] for n in bins) if most else ""


def glance(array: Any) -> Glance | None:
    """What an array is like; None if it has no numbers, or none that this process can read."""
    if not _is_readable(array):
        return None
    x = np.asarray(array) if array.size <= _ON_HOST else array
    numpy = np if isinstance(x, np.ndarray) else jnp
    if x.dtype == bool:
        x = x.astype(np.uint8)
    elif not np.issubdtype(np.dtype(x.dtype), np.integer) and x.dtype.itemsize < 4:
        x = x.astype(np.float32)  # types that NumPy knows little about, such as bfloat16
    finite = numpy.isfinite(x)
    nans = int(numpy.isnan(x).sum())
    n_finite = int(finite.sum())
    low, high = _ends(x, finite, numpy) if n_finite else (None, None)
    dead = units = 0
    if x.ndim > 1 and x.shape[-1] > 1 and x.size > x.shape[-1]:
        units = x.shape[-1]
        dead = int((x == 0).all(axis=tuple(range(x.ndim - 1))).sum())
    zeros = x.size > 1 and n_finite == x.size and low == high == 0
    sample = np.asarray(_sample(x, 20_000), np.float64)
    sample = sample[np.isfinite(sample)]
    bins = ()
    if low is not None and high is not None and low != high:
        bins = np.histogram(sample, _BINS, (low, high))[0]
    return Glance(low, high, nans, x.size - n_finite - nans, zeros, dead, units, tuple(map(int, bins)))


def _is_readable(array: Any) -> bool:
    if isinstance(array, _jax.Tracer) or not isinstance(array, (jax.Array, np.ndarray)) or not array.size:
        return False
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return False
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        return False
    kinds = (np.integer, np.floating, np.bool_)
    return any(jax.dtypes.issubdtype(array.dtype, kind) for kind in kinds)


def _ends(x: Any, finite: Any, numpy: Any) -> tuple[float, float]:
    """The smallest and the largest of the finite numbers."""
    if np.issubdtype(x.dtype, np.integer):
        return float(x.min()), float(x.max())
    low, high = numpy.min(x, where=finite, initial=np.inf), numpy.max(x, where=finite, initial=-np.inf)
    return float(low), float(high)


def _sample(x: Any, most: int) -> Any:
    flat = x.reshape(-1)
    return flat[:: max(1, flat.size // most)]


def picture(array: Any) -> str:
    """A picture of an array as the address of a PNG that holds itself; empty if there is nothing to draw.

    Of more than two axes, the first of each leading one is drawn. Red is positive and blue negative, NaN is black.
    """
    if not _is_readable(array) or array.ndim < 1 or array.size < 4:
        return ""
    x = array[(0,) * (array.ndim - 2)] if array.ndim > 2 else array[None] if array.ndim == 1 else array
    steps = [max(1, -(-n // most)) for n, most in zip(x.shape, _MOST_PIXELS)]
    x = np.asarray(x[:: steps[0], :: steps[1]]).astype(np.float64)
    finite = np.isfinite(x)
    most = float(np.max(np.abs(x), where=finite, initial=0.0)) or 1.0
    share = np.clip(np.where(finite, x, 0.0) / most, -1, 1)[..., None]
    color = np.where(share > 0, np.array([214, 69, 48]), np.array([48, 105, 214]))
    pixels = np.where(finite[..., None], 245 + (color - 245) * np.abs(share), 0).astype(np.uint8)
    return f"data:image/png;base64,{base64.b64encode(_png(pixels)).decode()}"


def _png(pixels: np.ndarray) -> bytes:
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts
