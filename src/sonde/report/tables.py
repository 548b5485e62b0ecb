"""The numbers of a site as plain data: for the page and for `Report.to_json`."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde._array_text import short_place
from sonde.report.pictures import Picture
from sonde.report.plain_json import number, plain
from sonde.report.site_data import Examined, Step, is_shares
from sonde.tools.numerics.array_statistics import Statistics

HEAD_SCORES: tuple[str, ...] = ("previous", "first", "same")
"""Keys that a head may attend to: the token before, the first token, the token itself."""
_MOST_POINTS = 128  # of a series over calls and iterations
_LEAST_POINTS = 24
_ALL_POINTS = 40_000  # of all series of a page together


def sites_data(sites: Sequence[Examined]) -> list[dict[str, Any]]:
    """The data of all sites; long series are thinned out, more so if there are many."""
    several = sum(len(steps) > 1 for site in sites for steps in (site.values, site.gradients))
    points = min(_MOST_POINTS, max(_LEAST_POINTS, _ALL_POINTS // max(several, 1)))
    return [site_data(site, points) for site in sites]


def site_data(site: Examined, points: int = _MOST_POINTS) -> dict[str, Any]:
    """One array at one site; `points` is the maximum number of calls and iterations."""
    return {
        "path": site.path,
        "part": site.part,
        "shape": list(site.shape),
        "dtype": site.dtype,
        "source": short_place(site.source),
        "unreached": site.unreached,
        "value": _side(site.values, points),
        "gradient": _side(site.gradients, points),
        "heads": _heads(site),
    }


def _heads(site: Examined) -> dict[str, Any] | None:
    """For attention, the share that each head gives to some keys: the mean over all queries but the first."""
    if not is_shares(site.values) or "head_first" not in site.values[0].traits:
        return None
    rows = sum(np.asarray(step.traits["head_rows"], float) for step in site.values)
    return {
        name: plain(sum(np.asarray(step.traits[f"head_{name}"], float) for step in site.values) / np.maximum(rows, 1))
        for name in HEAD_SCORES
    }


def _side(steps: Sequence[Step], points: int) -> dict[str, Any] | None:
    """The statistics over all steps, and those that change from step to step."""
    if not steps:
        return None
    s = [step.statistics for step in steps]
    mean, std, low, high, norm = (_column(s, name) for name in ("mean", "std", "min", "max", "norm"))
    finite = np.array([x.size - (x.nonfinite or 0) for x in s], float)
    has_finite, total = finite > 0, float(finite.sum())
    shares = finite[has_finite] / total if total else finite[has_finite]
    whole = float((mean[has_finite] * shares).sum()) if total else math.nan
    # Scaled by the largest, so that squares neither overflow nor vanish.
    peak = float(norm.max(initial=0))
    whole_norm = peak * math.sqrt(float(((norm / peak) ** 2).sum())) if peak > 0 else 0.0
    spread = float(np.hypot(std[has_finite], mean[has_finite] - whole).max(initial=0))
    around = np.hypot(std[has_finite], mean[has_finite] - whole) / spread if spread > 0 else std[has_finite]
    data = {
        "size": sum(x.size for x in s),
        "mean": whole,
        "std": spread * math.sqrt(float((around**2 * shares).sum())) if total else math.nan,
        "min": float(low[has_finite].min()) if total else math.nan,
        "max": float(high[has_finite].max()) if total else math.nan,
        "norm": whole_norm,
        "rms": whole_norm / math.sqrt(total) if total else math.nan,
        "zeros": sum(x.zeros or 0 for x in s),
        "units": s[0].units or 0,
        "dead": min(x.dead or 0 for x in s),
        "nonfinite": sum(x.nonfinite or 0 for x in s),
        "steps": len(steps),
    }
    histogram = np.sum([x.histogram for x in s if x.histogram is not None], axis=0)
    return {
        **{name: number(x) for name, x in data.items()},
        "histogram": _histogram(histogram),
        "series": _series(steps, points) if len(steps) > 1 else None,
    }


def _column(rows: Sequence[Statistics], name: str) -> np.ndarray:
    return np.array([getattr(row, name) for row in rows], float)


def _histogram(counts: np.ndarray) -> dict[str, Any] | None:
    used = np.flatnonzero(counts)
    if not used.size:
        return None
    return {"first": int(used[0]), "counts": [int(n) for n in counts[used[0] : used[-1] + 1]]}


def _series(steps: Sequence[Step], points: int) -> dict[str, Any]:
    numbers = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), points)).astype(int))
    chosen = [steps[i] for i in numbers]
    loops = any(step.row.iteration for step in steps)
    return {
        "over": "iteration" if loops else "call",
        "at": [step.when or "call 0" for step in chosen],
        "of": len(steps),
        "rms": [number(step.rms) for step in chosen],
        "nonfinite": [number(step.statistics.nonfinite) for step in chosen],
    }


def picture_data(picture: Picture) -> dict[str, Any]:
    """A picture, its levels as base64."""
    return {
        "path": picture.path,
        "part": picture.part,
        "kind": picture.kind,
        "call": picture.call,
        "iteration": list(picture.iteration),
        "shape": list(picture.levels.shape),
        "of": list(picture.shape),
        "low": plain(picture.low),
        "high": plain(picture.high),
        "levels": base64.b64encode(np.ascontiguousarray(picture.levels).tobytes()).decode("ascii"),
    }
