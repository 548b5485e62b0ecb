"""`statistics`: statistics of the values at sites over a data set, without storing them.

Every batch is reduced on the device to the sums of its units; batches are joined on the host in double precision. The
last axis of a value holds its units, all axes before it are samples, unless `axes` says otherwise. Numbers that are not
finite are counted and left out. Complex numbers count by their magnitude.

Quantiles come from a histogram with eight bins per power of two on both sides of zero: a quantile is off by at most
one part in eleven of its size.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde._array_text import counted
from sonde._renames import accepts_old_keywords
from sonde.core import (
    ByPath,
    JitByStaticPart,
    Pattern,
    StaticPart,
    capture,
    check_callable,
    check_patterns,
    inside_request,
    static_and_arrays,
)
from sonde.errors import StoreError
from sonde.store.writing.program import arguments, parts
from sonde.tools.execution.host_transfer import in_turn, to_host
from sonde.tools.numerics.exponents import float_type

_PER_OCTAVE = 8
_OCTAVES = 24  # on both sides of 1, on both sides of zero
_SIDE = 2 * _OCTAVES * _PER_OCTAVE


def _edges() -> np.ndarray:
    positive = 2.0 ** (np.arange(_SIDE + 1) / _PER_OCTAVE - _OCTAVES)
    return np.concatenate([-positive[::-1], positive])


EDGES = _edges()
"""The edges of the histogram's bins. Numbers nearer to zero than the innermost edges are in the bin between them."""


@dataclasses.dataclass(frozen=True, eq=False)
class UnitStatistics:
    """Statistics of the units of a site over a data set. Arrays have the shape of the units.

    Attributes:
        path: The path of the site.
        count: How many finite samples each unit has.
        nonfinite: How many samples are NaN or infinite.
        mean: The mean.
        variance: The mean squared distance from the mean.
        min: The smallest sample.
        max: The largest sample.
        covariance: The covariance of all pairs of units, as a matrix; None unless requested.
        histogram: How many samples are in each bin between `EDGES`, in the last axis; None unless requested.
        samples: Some samples, chosen at random among those that are finite, in the first axis; None unless requested.
    """

    path: str
    count: np.ndarray
    nonfinite: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    min: np.ndarray
    max: np.ndarray
    covariance: np.ndarray | None = None
    histogram: np.ndarray | None = None
    samples: np.ndarray | None = None

    @property
    def std(self) -> np.ndarray:
        """The standard deviation."""
        return np.sqrt(self.variance)

    def quantile(self, q: float) -> np.ndarray:
        """An estimate of the value below which a fraction `q` of the samples lies, for each unit."""
        if self.histogram is None:
            raise ValueError(f"the statistics of {self.path!r} have no histogram: pass histogram=True")
        if not 0 <= q <= 1:
            raise ValueError(f"a quantile must be between 0 and 1, got {q}")
        below = np.cumsum(self.histogram, axis=-1)
        rank = np.maximum(q * below[..., -1:], 1e-9)
        index = np.argmax(below >= rank, axis=-1)
        inside = np.take_along_axis(self.histogram, index[..., None], -1)[..., 0]
        before = np.take_along_axis(below, index[..., None], -1)[..., 0] - inside
        low, high = EDGES[index], EDGES[index + 1]
        found = low + (high - low) * (rank[..., 0] - before) / np.maximum(inside, 1)
        return np.clip(found, self.min, self.max)

    def whitening(self, epsilon: float = 1e-6) -> np.ndarray:
        """The matrix that makes centered samples uncorrelated, with variance one.

        Use it as `(x - mean) @ whitening()`; `epsilon` is added to every variance.
        """
        if self.covariance is None:
            raise ValueError(f"the statistics of {self.path!r} have no covariance: pass covariance=True")
        sizes, directions = np.linalg.eigh(self.covariance)
        return (directions / np.sqrt(np.maximum(sizes, 0) + epsilon)) @ directions.T

    def __repr__(self) -> str:
        return f"<statistics of {self.path!r}: {list(self.mean.shape)} units, {self.total:,} samples>"

    @property
    def total(self) -> int:
        """How many finite samples the first unit has."""
        return int(self.count.reshape(-1)[0]) if self.count.size else 0

    def _repr_html_(self) -> str:
        return DataStatistics({self.path: self}, 0)._repr_html_()


class DataStatistics(ByPath[UnitStatistics]):
    """Statistics by path, in program order."""

    def __init__(self, found: Mapping[str, UnitStatistics], batches: int) -> None:
        super().__init__(found)
        self.n_batches = batches

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._found.values()))

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        from sonde.display import WholePaths

        table = Table("site", *_COLUMNS, "wrong", title=self._title)
        for path, unit_statistics in self.items():
            alarm = _alarm(unit_statistics)
            style = "bold red" if unit_statistics.nonfinite.any() else "yellow" if alarm else ""
            table.add_row(*map(Text, (path, *_cells(unit_statistics), alarm)), style=style)
        return WholePaths(table)

    @property
    def _title(self) -> str:
        over = f" over {self.n_batches} batch{'es' * (self.n_batches != 1)}" if self.n_batches else ""
        return f"{counted(len(self), 'site')}{over}"

    def _repr_html_(self) -> str:
        from sonde.display import Leaf, tree_html

        sizes = [[float(np.max(np.abs(x), initial=0.0)) for x in (s.mean, s.std, s.max)] for s in self.values()]
        most = [max(column) or 1.0 for column in zip(*sizes)]
        leaves = [
            Leaf(
                path,
                _cells(unit_statistics),
                _alarm(unit_statistics),
                bool(unit_statistics.nonfinite.any()),
                shades=[0.0, 0.0, *(size / m for size, m in zip(row, most))],
            )
            for (path, unit_statistics), row in zip(self.items(), sizes)
        ]
        return tree_html(self._title, leaves, headers=_COLUMNS)


_COLUMNS = ("units", "samples", "means of units", "largest std", "range")


def _cells(unit_statistics: UnitStatistics) -> tuple[str, ...]:
    """What a table says about a site."""
    means, deviations = _ends(unit_statistics.mean), _ends(unit_statistics.std)
    low, high = _ends(unit_statistics.min)[0], _ends(unit_statistics.max)[1]
    units = "x".join(map(str, unit_statistics.mean.shape))
    return (
        units, f"{unit_statistics.total:,}", f"{means[0]:.4g} to {means[1]:.4g}", f"{deviations[1]:.4g}",
        f"{low:.4g} to {high:.4g}",
    )  # fmt: skip


def _alarm(unit_statistics: UnitStatistics) -> str:
    """What is wrong with a site, in a few words; empty if nothing is."""
    nonfinite = int(unit_statistics.nonfinite.sum())
    has_samples = unit_statistics.count > 0
    zeros = int(((unit_statistics.min == 0) & (unit_statistics.max == 0) & has_samples).sum())
    alarms = [f"{nonfinite:,} not finite"] if nonfinite else []
    alarms += [f"{zeros:,} of {unit_statistics.mean.size:,} units dead"] if zeros else []
    return ", ".join(alarms)


def _ends(x: np.ndarray) -> list[float]:
    """The smallest and the largest number; NaN if there is none."""
    return [float(np.min(x)), float(np.max(x))] if x.size else [np.nan, np.nan]


@accepts_old_keywords("sonde.store.statistics")
def statistics(
    f: Callable[..., Any],
    batches: Iterable[Any],
    *patterns: Pattern,
    keep: Callable[..., Any] | None = None,
    row_axes: int | None = None,
    covariance: bool = False,
    histogram: bool = False,
    samples: int = 0,
    seed: int = 0,
    reduce: Callable[[Any], Any] | None = None,
    grads: bool = False,
    inside: object = None,
) -> DataStatistics:
    """Mean, variance, range and, if requested, covariance and quantiles of every unit over a data set.

    Args:
        f: Any function that `sonde.capture` takes.
        batches: Inputs: each a tuple of arguments, or one argument.
        *patterns: Which sites; all by default.
        keep: A function of the arguments of `f` that returns a mask of the samples to count, such as
            `lambda tokens: tokens != 0`.
        row_axes: How many of the first axes of a value are samples; by default all but the last, or those of the mask.
        covariance: Whether to compute the covariance of all pairs of units.
        histogram: Whether to keep a histogram of each unit, for quantiles.
        samples: How many samples to keep, chosen at random, for `ablate(..., resample=True)`.
        seed: For the choice of these samples.
        reduce: A function of the value, applied at the site first.
        grads: Whether to use gradients instead of values, if `f` differentiates something.
        inside: Functions or modules that mark no values themselves; see `sonde.capture`.

    Example:
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import store
        >>> f = lambda x: sonde.sow(x * 2, "h")
        >>> found = store.statistics(f, [jnp.arange(8.0).reshape(4, 2) + i for i in range(3)])
        >>> found["h"].mean, int(found["h"].count[0])
        (array([ 8., 10.]), 12)
    """
    check_callable(f, "statistics")
    patterns = check_patterns(patterns, "statistics")
    asked = inside_request(inside)
    options = _Options(patterns, row_axes, covariance, histogram, samples, seed, grads, asked)
    run = JitByStaticPart.shared(functools.partial(_Options.sums, options, keep, reduce), f, keep, reduce)
    joined: dict[str, _Sums] = {}
    n = 0
    for batch in batches:
        sums = to_host(in_turn(run(*static_and_arrays((f, arguments(batch)), asked), np.uint32(n))))
        with np.errstate(over="ignore"):  # the variance of doubles near the largest is infinite
            for path, new in sums.items():
                joined[path] = _joined(joined[path], new, samples) if path in joined else _double(new)
        n += 1
    if not n:
        raise ValueError("statistics: there are no batches")
    return DataStatistics({path: _described(path, sums) for path, sums in joined.items()}, n)


_Sums = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Options:
    patterns: tuple[Pattern, ...]
    row_axes: int | None
    covariance: bool
    histogram: bool
    samples: int
    seed: int
    grads: bool
    inside: object

    def sums(self, keep: Any, reduce: Any, rest: StaticPart, arrays: list[Any], number: Any) -> dict[str, _Sums]:
        f, args = rest.whole(arrays)
        run = capture(f, *self.patterns, grads=self.grads, reduce=reduce, inside=self.inside)
        _, records = run(*args)
        mask = None if keep is None else jnp.asarray(keep(*args))
        wanted = "grads" if self.grads else "values"
        found = {
            path: self._of(array, mask, path, number)
            for kind, path, array in parts(records, grads=self.grads)
            if kind == wanted and jnp.issubdtype(array.dtype, jnp.number)
        }
        if not found:
            raise StoreError(f"statistics: the program has no site with {wanted} to describe")
        return found

    def _of(self, array: Any, mask: Any, path: str, number: Any) -> _Sums:
        axes = self.row_axes if self.row_axes is not None else mask.ndim if mask is not None else max(array.ndim - 1, 0)
        if array.ndim < axes or (mask is not None and array.shape[: mask.ndim] != mask.shape):
            expected = f"{axes} axes of samples" if mask is None else f"the mask's {mask.shape} in front"
            raise StoreError(f"statistics: {path!r} has shape {array.shape}, which does not have {expected}")
        units = array.shape[axes:]
        if jnp.issubdtype(array.dtype, jnp.complexfloating):
            array = jnp.abs(array)
        x = array.astype(float_type(array.dtype)).reshape(-1, *units)
        ok = jnp.isfinite(x)
        chosen = jnp.ones(x.shape[0], bool)
        if mask is not None:
            spread = mask.reshape(mask.shape + (1,) * (axes - mask.ndim))
            chosen = jnp.broadcast_to(spread, array.shape[:axes]).reshape(-1)
        chosen = chosen.reshape(-1, *(1,) * len(units))
        used = ok & chosen
        count = jnp.sum(used, 0, dtype=jnp.int32)
        some = jnp.maximum(count, 1).astype(x.dtype)
        mean = jnp.sum(jnp.where(used, x, 0), 0) / some
        around = jnp.where(used, x - mean, 0)
        sums = {
            "count": count,
            "nonfinite": jnp.sum(~ok & chosen, 0, dtype=jnp.int32),
            "mean": mean,
            "squares": jnp.sum(around**2, 0),
            "min": jnp.min(jnp.where(used, x, jnp.inf), 0, initial=jnp.inf),
            "max": jnp.max(jnp.where(used, x, -jnp.inf), 0, initial=-jnp.inf),
        }
        if self.covariance:
            flat = around.reshape(x.shape[0], -1)
            sums["products"] = jax.lax.dot(flat.T, flat, precision="highest")
        if self.histogram:
            sums["histogram"] = _histogram(x, used)
        if self.samples:
            # Samples that belong together get the same random number at all sites.
            lots = jax.random.uniform(jax.random.fold_in(jax.random.key(self.seed), number), x.shape[:1])
            lots = jnp.where(used.reshape(x.shape[0], -1).all(1), lots, -1.0)
            sums["lots"], drawn = jax.lax.top_k(lots, min(self.samples, x.shape[0]))
            sums["samples"] = x[drawn]
        return sums


def _histogram(x: Any, used: Any) -> Any:
    """For each unit, how many samples are in each bin."""
    power = jnp.log2(jnp.maximum(jnp.abs(x), 2.0**-_OCTAVES / 2))
    step = jnp.clip(jnp.floor((power + _OCTAVES) * _PER_OCTAVE).astype(jnp.int32), -1, _SIDE - 1)
    index = jnp.where(step < 0, _SIDE, jnp.where(x > 0, _SIDE + 1 + step, _SIDE - 1 - step))
    units = x.shape[1:]
    flat = index.reshape(x.shape[0], -1)
    counts = jnp.zeros((flat.shape[1], 2 * _SIDE + 1), jnp.int32)
    counts = counts.at[jnp.arange(flat.shape[1])[None, :], flat].add(used.reshape(flat.shape).astype(jnp.int32))
    return counts.reshape(*units, 2 * _SIDE + 1)


_DRAWN = ("lots", "samples")


def _double(sums: _Sums) -> _Sums:
    return {
        name: x if name in _DRAWN else np.asarray(x, np.int64 if np.asarray(x).dtype.kind == "i" else np.float64)
        for name, x in sums.items()
    }


def _joined(a: _Sums, new: _Sums, most: int) -> _Sums:
    """The sums of two sets of samples combined, by the usual formula for means and squared deviations.

    Of the samples themselves, the `most` with the highest random numbers are kept.
    """
    b = _double(new)
    if a["mean"].shape != b["mean"].shape:
        raise StoreError(
            f"statistics: units have shape {a['mean'].shape} in one batch and {b['mean'].shape} in another"
        )
    total = a["count"] + b["count"]
    away = b["mean"] - a["mean"]
    share = np.where(total > 0, b["count"] / np.maximum(total, 1), 0.0)
    joined = {
        "count": total,
        "nonfinite": a["nonfinite"] + b["nonfinite"],
        "mean": a["mean"] + away * share,
        "squares": a["squares"] + b["squares"] + away**2 * a["count"] * share,
        "min": np.minimum(a["min"], b["min"]),
        "max": np.maximum(a["max"], b["max"]),
    }
    if "products" in a:
        flat, weight = away.reshape(-1), np.sqrt(a["count"] * share).reshape(-1)
        joined["products"] = a["products"] + b["products"] + np.outer(flat * weight, flat * weight)
    if "histogram" in a:
        joined["histogram"] = a["histogram"] + b["histogram"]
    if "lots" in a:
        lots, samples = (np.concatenate([a[name], b[name]]) for name in _DRAWN)
        best = np.argsort(-lots, kind="stable")[:most]
        joined |= {"lots": lots[best], "samples": samples[best]}
    return joined


def _described(path: str, sums: _Sums) -> UnitStatistics:
    count = np.maximum(sums["count"], 1)
    covariance = None
    if "products" in sums:
        weight = np.sqrt(count).reshape(-1)
        covariance = sums["products"] / np.outer(weight, weight)
    found = {name: sums[name] for name in ("count", "nonfinite", "mean", "min", "max")}
    return UnitStatistics(
        path,
        **found,
        variance=sums["squares"] / count,
        covariance=covariance,
        histogram=sums.get("histogram"),
        samples=sums["samples"][sums["lots"] >= 0] if "lots" in sums else None,
    )
