"""Numbers that describe an array, computed where the array is.

`moments` runs on the device, at a site; `moments_of_whole` on the host, for small arrays, where nothing is compiled.
`described` combines the moments of several examples (the axis that `vmap` adds to a site) on the host. Mean, deviation,
range and norm are computed over the finite elements, so that one NaN does not hide everything else; elements that are
not finite are counted separately. Complex numbers count by their magnitude.

The bins of the histogram are fixed: powers of two from 2^-20 to 2^20 on both sides of zero. Counts of different
examples, iterations and steps can therefore be added.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from sonde import _jax
from sonde.core import arrays_in
from sonde.tools.numerics.exponents import Exponents, HostRows, float_type

Array = jax.Array | np.ndarray

_MOST = 20
_POWERS = 2.0 ** np.arange(-_MOST, _MOST + 1)
EDGES: np.ndarray = np.concatenate([[-np.inf], -_POWERS[::-1], _POWERS, [np.inf]])
"""The edges of the histogram's bins; the bin in the middle holds zero and what is nearly zero."""

_TAILED = ("alive", "histogram")  # moments that are not a single number
FORMATS: tuple[str, ...] = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
"""The narrow formats that `overflow_` and `underflow_` are about."""
_LOST = tuple(f"{how}_{name}" for name in FORMATS for how in ("overflow", "underflow"))
_COUNTS = ("size", "finite", "zeros", *_LOST)
_FLOATS = ("scale", "mean", "deviation", "norm", "low", "high")
_NEEDED = {
    "mean": ("finite", "mean", "scale"),
    "std": ("finite", "mean", "deviation", "scale"),
    "min": ("low",),
    "max": ("high",),
    "norm": ("finite", "norm", "scale"),
    "zeros": ("zeros",),
    "dead": ("alive",),
    "nonfinite": ("finite",),
    "histogram": ("histogram",),
}
NAMES: tuple[str, ...] = tuple(_NEEDED)
"""The names of the statistics that are computed if none are named."""
_NEEDED |= {"amax": ("low", "high"), **{name: ("finite", name) for name in _LOST}}
ALL_NAMES: tuple[str, ...] = tuple(_NEEDED)
"""The names of all statistics."""


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the elements of an array; None for those that were not requested.

    Attributes:
        size: How many elements there are.
        mean: The mean of the finite elements.
        std: Their standard deviation.
        min: The smallest of them.
        max: The largest of them.
        norm: The root of the sum of their squares; NaN if no element is finite.
        zeros: How many elements are exactly zero.
        units: How many units there are: the length of the last axis.
        dead: How many units are zero in every example and position.
        nonfinite: How many elements are NaN or infinite.
        histogram: How many elements are in each of the bins between `EDGES`.
        lost: For each `overflow_` and `underflow_` with the name of a format: the share of the elements that would be
            infinite or NaN in that format, or zero, and are not.
    """

    size: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    max: float | None = None
    norm: float | None = None
    zeros: int | None = None
    units: int | None = None
    dead: int | None = None
    nonfinite: int | None = None
    histogram: np.ndarray | None = None
    lost: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def amax(self) -> float | None:
        """The largest magnitude of the finite elements."""
        return None if self.min is None or self.max is None else max(-self.min, self.max)

    def number(self, name: str) -> float:
        """A statistic by its name."""
        return self.lost[name] if name in self.lost else getattr(self, name)


def moments(array: Array, names: Collection[str] = NAMES, *, often: bool = False) -> dict[str, Any]:
    """The numbers from which `described` computes statistics of an array; used as, or in, a `reduce` function.

    Args:
        array: Any array. The result is empty for one without numbers (random keys).
        names: Which statistics.
        often: Whether this runs often enough to be worth a longer program, with a faster branch for ordinary arrays.
    """
    array = jnp.asarray(array)
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        return {}
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.abs(array)
    x = array.astype(float_type(array.dtype))
    # In a shard_map, the branches would differ in the axes of the mesh over which their counts are said to vary.
    if not often or _jax.varying_axes(x):
        return _carefully(x, names)
    # The sum of squares is in this range only if every element is finite and no square has left the range of the dtype.
    # On an accelerator reading the array is cheap, and a branch is not.
    x = jax.lax.optimization_barrier(x)  # otherwise every sum would compute the array again
    squares = jnp.sum(x**2)
    usual = (squares > 2.0**-80) & (squares < 2.0**100)
    quickly = functools.partial(jax.lax.cond, usual, lambda x: _made(x, names), lambda x: _carefully(x, names))
    return jax.lax.platform_dependent(x, cpu=quickly, default=lambda x: _carefully(x, names))


def moments_of_whole(array: np.ndarray, lead: int = 0, names: Collection[str] = NAMES) -> dict[str, Any]:
    """The same as `moments`, computed on the host: nothing is compiled.

    Args:
        array: The array, with loops and mapped axes in front.
        lead: How many axes in front to keep.
        names: Which statistics.
    """
    return moments_of_rows(HostRows.of(array, lead), names)


def moments_of_rows(rows: HostRows, names: Collection[str] = NAMES) -> dict[str, Any]:
    """The same for an array that is already split into rows."""
    with np.errstate(all="ignore"):
        if not rows.exponents:
            return _carefully(rows.array, names, len(rows.front), np)
        return rows.together([_of_row(row, by, rows.shape, names) for row, by in zip(rows.rows, rows.exponents)])


def _of_row(row: np.ndarray, exponents: Exponents, shape: tuple[int, ...], names: Collection[str]) -> dict[str, Any]:
    """The moments of a row with at least one number, on the host; `shape` is its shape in the array."""
    low, high = row.min(), row.max()
    peak = float(max(high, -low))  # NaN if there is one
    if not 2.0**-40 <= peak <= 2.0**40:
        return _carefully(row.reshape(shape), names, 0, np)
    zeros = row.size - int(np.count_nonzero(row)) if exponents.smallest else 0
    mean = row.sum() / row.dtype.type(row.size)
    around = row - mean
    squares = float(np.square(around, out=around).sum())
    made = {
        "finite": lambda: row.size,
        "size": lambda: row.size,
        "scale": lambda: 1.0,
        "mean": lambda: mean,
        "deviation": lambda: math.sqrt(squares),
        "norm": lambda: math.sqrt(squares + row.size * float(mean) ** 2),
        "low": lambda: low,
        "high": lambda: high,
        "zeros": lambda: zeros,
    }
    made |= {name: functools.partial(_lost, row, name, (0,), np) for name in _LOST}
    needed = {moment for name in names for moment in _NEEDED[name]}
    counts, floats = _packed(names)
    found: dict[str, Any] = {"counts": np.array([made[m]() for m in counts], np.int32)}
    if floats:
        found["floats"] = np.array([made[m]() for m in floats], row.dtype)
    if "alive" in needed:
        found["alive"] = _alive(row.reshape(shape), 0, np) if zeros or not shape else np.ones(shape[-1], bool)
    if "histogram" in needed:
        found["histogram"] = exponents.histogram(_MOST)
    return found


def _carefully(x: Array, names: Collection[str], lead: int = 0, xp: types.ModuleType = jnp) -> dict[str, Any]:
    """The moments of an array with NaNs, infinities, very large or very small numbers."""
    ok = xp.isfinite(x)
    # Squares of large and of small numbers leave the range of the dtype: then everything is scaled by a power of two,
    # which is exact. The host divides by it, in double precision.
    axes = tuple(range(lead, x.ndim))
    peak = xp.max(xp.abs(xp.where(ok, x, 0)), axes, initial=0)
    scale = xp.where(peak > 2.0**40, 2.0**-80, xp.where(peak < 2.0**-40, 2.0**80, 1.0))
    if x.dtype == np.float64:  # whose exponents go eight times as far
        scale = xp.where(peak > 2.0**400, 2.0**-700, xp.where(peak < 2.0**-400, 2.0**700, scale))
    scale = scale.astype(x.dtype)
    return _made(x, names, ok, scale, lead, xp)


def _made(
    x: Array,
    names: Collection[str],
    ok: Array | None = None,
    scale: Array | None = None,
    lead: int = 0,
    xp: types.ModuleType = jnp,
) -> dict[str, Any]:
    """The moments: of all elements if `ok` is None, and unscaled if `scale` is."""
    axes = tuple(range(lead, x.ndim))

    def where_ok(x: Array, other: Any) -> Any:
        return x if ok is None else xp.where(ok, x, other)

    def of_all(x: Array) -> Any:
        return x.reshape((*x.shape, *(1 for _ in axes))) if lead else x

    size = xp.full(x.shape[:lead], math.prod(x.shape[lead:]), np.int32)
    kept = where_ok(x, 0)
    scaled = kept if scale is None else kept * of_all(scale)
    finite = size if ok is None else xp.sum(ok, axes, dtype=np.int32)
    mean = xp.sum(scaled, axes) / xp.maximum(finite, 1).astype(x.dtype)
    made = {
        "finite": lambda: finite,
        "size": lambda: size,
        "scale": lambda: xp.ones(size.shape, x.dtype) if scale is None else scale,
        "mean": lambda: mean,
        "deviation": lambda: xp.sqrt(xp.sum(where_ok(scaled - of_all(mean), 0) ** 2, axes)),
        "norm": lambda: xp.sqrt(xp.sum(scaled**2, axes)),
        "low": lambda: xp.min(where_ok(x, np.inf), axes, initial=np.inf),
        "high": lambda: xp.max(where_ok(x, -np.inf), axes, initial=-np.inf),
        "zeros": lambda: xp.sum(x == 0, axes, dtype=np.int32),
        "alive": lambda: _alive(x, lead, xp),
        "histogram": lambda: _counts(kept, xp.ones(x.shape, bool) if ok is None else ok, lead, xp),
    }
    made |= {name: functools.partial(_lost, kept, name, axes, xp) for name in _LOST}
    needed = {moment for name in names for moment in _NEEDED[name]}
    counts, floats = _packed(names)
    packed = {"counts": xp.stack([made[m]() for m in counts], -1)}
    if floats:
        packed["floats"] = xp.stack([made[m]() for m in floats], -1)
    return packed | {moment: made[moment]() for moment in _TAILED if moment in needed}


def _lost(x: Array, name: str, axes: tuple[int, ...], xp: types.ModuleType) -> Any:
    """How many finite elements overflow or underflow in a narrow format."""
    how, _, narrow = name.partition("_")
    stored = x.astype(np.dtype(narrow)).astype(np.float32)
    lost = ~xp.isfinite(stored) if how == "overflow" else (stored == 0) & (x != 0)
    return xp.sum(lost, axes, dtype=np.int32)


def _alive(x: Array, lead: int, xp: types.ModuleType) -> Any:
    """Which units are not zero somewhere."""
    if x.ndim == lead:
        return xp.zeros((*x.shape, 0), bool)
    return xp.any(x != 0, tuple(range(lead, x.ndim - 1)))


def _packed(names: Collection[str]) -> tuple[list[str], list[str]]:
    """The moments that are single numbers, integers and floats: a few arrays reach the host faster than many."""
    needed = {moment for name in names for moment in _NEEDED[name]}
    return [m for m in _COUNTS if m in needed or m == "size"], [m for m in _FLOATS if m in needed]


def _counts(x: Array, ok: Array, lead: int, xp: types.ModuleType) -> Any:
    """How many of the elements that are `ok` fall into each bin."""
    if xp is np:
        bins, shape = len(EDGES) - 1, x.shape[:lead]
        rows = np.arange(math.prod(shape)).reshape((*shape, *(1 for _ in x.shape[lead:])))
        found = np.bincount((rows * bins + _bin(x, np))[ok], minlength=rows.size * bins)
        return found.reshape((*shape, bins)).astype(np.int32)
    if AxisType.Explicit in jax.typeof(x).sharding.mesh.axis_types:  # no type says how a count over shards is sharded
        anyhow: Any = jax.sharding.auto_axes(_scattered, out_sharding=PartitionSpec(None))
        return anyhow(x, ok)
    return _scattered(x, ok)


def _bin(x: Array, xp: types.ModuleType) -> Any:
    power = xp.frexp(xp.abs(x))[1] - 1
    step = xp.where(x == 0, 0, xp.clip(power, -_MOST - 1, _MOST) + _MOST + 1)
    return len(EDGES) // 2 - 1 + xp.sign(x).astype(np.int32) * step


def _scattered(x: Array, ok: Array) -> Any:
    return jnp.zeros(len(EDGES) - 1, jnp.int32).at[_bin(x, jnp)].add(ok.astype(jnp.int32))


def moments_of_parts(value: Any, names: Collection[str] = NAMES, *, often: bool = False) -> list[dict[str, Any]]:
    """The moments of every array in a pytree."""
    return [moments(x, names, often=often) for x in arrays_in(value)]


def described(
    packed: Mapping[str, np.ndarray], taken: np.ndarray | None = None, names: Collection[str] = NAMES
) -> Statistics:
    """The statistics of arrays whose moments have mapped axes in front.

    Args:
        packed: What `moments` returned.
        taken: Which examples count, along the first of the mapped axes. All, if None.
        names: The names that `moments` was given.
    """
    parts = {moment: packed[moment] for moment in _TAILED if moment in packed}
    for kind, of_kind in zip(("counts", "floats"), _packed(names)):
        parts |= {moment: packed[kind][..., i] for i, moment in enumerate(of_kind)}
    lead = np.shape(parts["size"])
    if not lead and (taken is None or taken):
        return _of_one(parts)
    mask = np.ones(lead, bool)
    if taken is not None:
        taken = np.asarray(taken)
        mask &= taken.reshape(taken.shape + (1,) * (len(lead) - taken.ndim))

    def several(moment: str) -> np.ndarray:
        x = np.asarray(parts[moment])
        x = np.broadcast_to(x, (*lead, *x.shape[-1:])) if moment in _TAILED else np.broadcast_to(x, lead)
        return x[mask] if moment in _TAILED or x.dtype.kind != "f" else x[mask].astype(np.float64)

    size = int(several("size").sum())
    found: dict[str, Any] = {"size": size}
    if "finite" in parts:
        finite = several("finite").astype(np.float64)
        total = finite.sum()
        found["nonfinite"] = int(size - total)
        if "mean" in parts:
            means = several("mean") / several("scale")
            mean = float((means * (finite / max(total, 1))).sum()) if total else float("nan")
            found["mean"] = mean
            if "deviation" in parts:
                within, between = several("deviation") / several("scale"), np.sqrt(finite) * (means - mean)
                around = _root_of_squares(np.concatenate([within, between]))
                found["std"] = around / math.sqrt(total) if total else float("nan")
    if "low" in parts:
        found["min"] = _or_nan(several("low").min(initial=np.inf))
    if "high" in parts:
        found["max"] = _or_nan(several("high").max(initial=-np.inf))
    if "norm" in parts:
        found["norm"] = _root_of_squares(several("norm") / several("scale"))
    if "zeros" in parts:
        found["zeros"] = int(several("zeros").sum())
    lost = {name: int(several(name).sum()) / max(size, 1) for name in _LOST if name in parts}
    found |= {"lost": lost} if lost else {}
    if "alive" in parts:
        alive = several("alive").any(axis=0)
        found["units"], found["dead"] = alive.size, int((~alive).sum())
    if "histogram" in parts:
        found["histogram"] = several("histogram").sum(axis=0)
    return Statistics(**found)


def _root_of_squares(numbers: np.ndarray) -> float:
    """The norm of a row, even if the squares leave the range of doubles."""
    peak = float(np.abs(numbers).max(initial=0))
    return peak * math.sqrt(float(np.square(numbers / peak).sum())) if peak and math.isfinite(peak) else peak


def _of_one(parts: Mapping[str, np.ndarray]) -> Statistics:
    """The statistics of one example: the same numbers, much faster because nothing has to be combined."""
    size = int(parts["size"])
    found: dict[str, Any] = {"size": size}
    scale = float(parts["scale"]) if "scale" in parts else 1.0
    if "finite" in parts:
        finite = int(parts["finite"])
        found["nonfinite"] = size - finite
        if "mean" in parts:
            found["mean"] = float(parts["mean"]) / scale if finite else math.nan
        if "deviation" in parts:
            found["std"] = float(parts["deviation"]) / scale / math.sqrt(finite) if finite else math.nan
    if "low" in parts:
        found["min"] = _or_nan(parts["low"])
    if "high" in parts:
        found["max"] = _or_nan(parts["high"])
    if "norm" in parts:
        found["norm"] = math.nan if size and not int(parts["finite"]) else float(parts["norm"]) / scale
    if "zeros" in parts:
        found["zeros"] = int(parts["zeros"])
    lost = {name: int(parts[name]) / max(size, 1) for name in _LOST if name in parts}
    found |= {"lost": lost} if lost else {}
    if "alive" in parts:
        found["units"], found["dead"] = parts["alive"].size, int((~parts["alive"]).sum())
    if "histogram" in parts:
        found["histogram"] = parts["histogram"]
    return Statistics(**found)


def _or_nan(x: Array) -> float:
    return float(x) if np.isfinite(x) else float("nan")


def check_names(names: Sequence[object], asked: str, known: Sequence[str] = NAMES) -> None:
    """Raises ValueError for a name that is not a statistic; `asked` names the caller."""
    for name in names:
        if name not in known:
            raise ValueError(f"{asked}: there is no statistic {name!r}; there are {', '.join(known)}")
