"""Small pictures of a value, made on its device: a few examples, heads, channels; never a whole activation.

A picture leaves the device as bytes: a level from 0 to 254 between the smallest and the largest finite value of the
picture, 255 for what is not finite. Inside loops, where there is one per iteration, pictures are smaller.

The kind of picture is guessed from the shape. Where two guesses fit, both pictures are taken, and the host, which knows
whether the rows are attention weights, drops one.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from sonde.tools.numerics.exponents import float_type

Kind = Literal["attention", "features", "matrix"]
MISSING = 255
"""The level of numbers that are not finite."""
_ATTENTION_NAME = re.compile(r"att|weights|pattern|scores|probs", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How large a picture may be.

    Attributes:
        examples: How many examples.
        heads: How many heads of attention.
        positions: How many queries and how many keys: the first ones.
        channels: How many channels of a feature map.
        pixels: How many pixels a feature map is high and wide: every n-th one.
        rows: How many rows of a matrix.
        columns: How many columns of a matrix.
    """

    examples: int
    heads: int
    positions: int
    channels: int
    pixels: int
    rows: int
    columns: int


LIMITS = Limits(examples=2, heads=64, positions=64, channels=16, pixels=32, rows=32, columns=64)
LIMITS_IN_LOOPS = Limits(examples=1, heads=16, positions=32, channels=4, pixels=16, rows=8, columns=32)


def may_be_attention(shape: Sequence[int], path: str) -> bool:
    """Whether the last two axes of an array may be queries and keys."""
    if len(shape) < 2 or min(shape) < 1 or min(shape[-2:]) < 2:
        return False
    named = _ATTENTION_NAME.search(path) is not None
    return named or len(shape) >= 4 or (len(shape) == 3 and shape[-1] == shape[-2])


def may_be_features(shape: Sequence[int], mapped: int) -> bool:
    """Whether an array may be images with channels last."""
    if len(shape) < 3 or min(shape) < 1:
        return False
    height, width = shape[-3], shape[-2]
    has_channels = len(shape) >= 4 or mapped > 0 or height == width
    return has_channels and min(height, width) >= 4 and max(height, width) <= 4 * min(height, width)


def pictures(array: Any, mapped: int, path: str, limits: Limits, xp: Any = jnp) -> dict[str, dict[str, Any]]:
    """The pictures of an array, by kind.

    Args:
        array: The array, with mapped axes in front.
        mapped: How many mapped axes there are.
        path: The path of the site: a name such as `attn` helps.
        limits: How large they may be.
        xp: `jax.numpy` on the device, `numpy` on the host.
    """
    if not _has_numbers(array) or not array.size or not array.ndim:
        return {}
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = xp.abs(array)
    shape = array.shape
    levels: Any = _compiled_levels if xp is jnp else functools.partial(_levels, xp=xp)
    drawn: dict[str, dict[str, Any]] = {}
    if may_be_attention(shape, path):
        x = array.reshape(-1, *((1,) * (3 - len(shape))), *shape[max(0, len(shape) - 3) :])
        n = limits.positions
        drawn["attention"] = levels(x[: limits.examples, : limits.heads, :n, :n])
    if may_be_features(shape, mapped):
        x = array.reshape(-1, *shape[-3:])
        strides = [-(-size // limits.pixels) for size in x.shape[1:3]]
        drawn["features"] = levels(x[: limits.examples, :: strides[0], :: strides[1], : limits.channels])
    if not drawn and array.size > 1:
        x = array.reshape(-1, *((1,) * (2 - len(shape))), *shape[max(0, len(shape) - 2) :])
        drawn["matrix"] = levels(x[:1, : limits.rows, : limits.columns])
    return drawn


def pictures_of_rows(
    array: np.ndarray, loops: int, mapped: int, path: str, limits: Limits
) -> dict[str, dict[str, Any]]:
    """The pictures of every iteration of an array on the host, by kind; with `loops` axes of loops in front."""
    lengths = array.shape[:loops]
    with np.errstate(all="ignore"):
        rows = [pictures(array[at], mapped, path, limits, np) for at in np.ndindex(lengths)]
    if not rows:
        return {}
    return {
        kind: {
            name: np.reshape([row[kind][name] for row in rows], (*lengths, *np.shape(x)))
            for name, x in first_row.items()
        }
        for kind, first_row in rows[0].items()
    }


def _has_numbers(array: Any) -> bool:
    return not jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended) and array.dtype != jnp.bool_


def _levels(x: Any, xp: Any = jnp) -> dict[str, Any]:
    x = x.astype(float_type(x.dtype))
    ok = xp.isfinite(x)
    low = xp.min(xp.where(ok, x, np.inf))
    high = xp.max(xp.where(ok, x, -np.inf))
    # Halves, so that the width of a range up to the largest float does not overflow.
    width = xp.maximum(high / 2 - low / 2, np.finfo(x.dtype).tiny)
    level = xp.clip(xp.round((x / 2 - low / 2) / width * (MISSING - 1)), 0, MISSING - 1)
    return {"levels": xp.where(ok, level, MISSING).astype(np.uint8), "low": low, "high": high}


_compiled_levels = jax.jit(_levels)
