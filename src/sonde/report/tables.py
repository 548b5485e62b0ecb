"""The numbers of a site as plain data: what the page draws and `Report.to_json` returns."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde.report.examined import Examined, Step
from sonde.report.pictures import Picture
from sonde.report.plain import number, plain

_POINTS = 128  # of a series over calls and iterations


def site_data(site: Examined) -> dict[str, Any]:
    """One array at one site."""
    return {
        "path": site.path,
        "part": site.part,
        "shape": list(site.shape),
        "dtype": site.dtype,
        "source": site.source,
        "unreached": site.unreached,
        "value": _side(site.values),
        "gradient": _side(site.gradients),
    }


def _side(steps: Sequence[Step]) -> dict[str, Any] | None:
    """All steps in one, and what changes from step to step."""
    if not steps:
        return None
    s = [step.statistics for step in steps]
    size = sum(x.size for x in s)
    finite = np.array([x.size - (x.nonfinite or 0) for x in s], float)
    total = finite.sum()
    means, stds = (np.array([getattr(x, name) for x in s], float) for name in ("mean", "std"))
    norms = np.array([x.norm for x in s], float)
    ok = finite > 0
    mean = float((means[ok] * finite[ok]).sum() / total) if total else float("nan")
    spread = (finite[ok] * (stds[ok] ** 2 + (means[ok] - mean) ** 2)).sum() / total if total else float("nan")
    peak = norms.max(initial=0)
    norm = float(peak * np.sqrt(((norms / peak) ** 2).sum())) if peak > 0 else 0.0
    histogram = np.sum([x.histogram for x in s if x.histogram is not None], axis=0)
    data = {
        "size": size,
        "mean": mean,
        "std": float(np.sqrt(spread)),
        "min": float(np.nanmin([x.min for x in s])) if total else float("nan"),
        "max": float(np.nanmax([x.max for x in s])) if total else float("nan"),
        "norm": norm,
        "rms": norm / float(np.sqrt(total)) if total else float("nan"),
        "zeros": sum(x.zeros or 0 for x in s),
        "units": s[0].units or 0,
        "dead": min(x.dead or 0 for x in s),
        "nonfinite": sum(x.nonfinite or 0 for x in s),
        "steps": len(steps),
    }
    return {
        **{name: number(x) for name, x in data.items()},
        "histogram": _histogram(histogram),
        "series": _series(steps) if len(steps) > 1 else None,
    }


def _histogram(counts: np.ndarray) -> dict[str, Any] | None:
    used = np.flatnonzero(counts)
    if not used.size:
        return None
    return {"first": int(used[0]), "counts": [int(n) for n in counts[used[0] : used[-1] + 1]]}


def _series(steps: Sequence[Step]) -> dict[str, Any]:
    kept = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), _POINTS)).astype(int))
    chosen = [steps[i] for i in kept]
    loops = any(step.row.iteration for step in steps)
    return {
        "over": "iteration" if loops else "call",
        "at": [step.when or "call 0" for step in chosen],
        "of": len(steps),
        "rms": [number(step.rms) for step in chosen],
        "mean": [number(step.statistics.mean) for step in chosen],
        "min": [number(step.statistics.min) for step in chosen],
        "max": [number(step.statistics.max) for step in chosen],
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


def fitting(pictures: Sequence[Picture], budget: int) -> list[Picture]:
    """The pictures that fit into some bytes: attention and features first, then matrices; each smaller if need be."""
    ranked = sorted(pictures, key=lambda p: p.kind == "matrix")
    important = sum(p.levels.size for p in ranked if p.kind != "matrix")
    while important > budget and any(p.levels.shape[0] > 1 or p.levels.size > 4096 for p in ranked):
        ranked = [_smaller(p) if p.kind != "matrix" else p for p in ranked]
        reduced = sum(p.levels.size for p in ranked if p.kind != "matrix")
        if reduced == important:
            break
        important = reduced
    kept, used = set(), 0
    for p in ranked:
        if used + p.levels.size <= budget:
            kept.add((p.path, p.part, p.call, p.iteration))
            used += p.levels.size
    by_place = {(p.path, p.part, p.call, p.iteration): p for p in ranked}
    return [by_place[key] for p in pictures if (key := (p.path, p.part, p.call, p.iteration)) in kept]


def _smaller(picture: Picture) -> Picture:
    import dataclasses

    levels = picture.levels
    if levels.shape[0] > 1:
        levels = levels[:1]
    elif picture.kind == "attention":
        levels = levels[:, : max(1, levels.shape[1] // 2)] if levels.shape[1] > 2 else levels[..., :32, :32]
    else:
        levels = levels[..., : max(4, levels.shape[-1] // 2)]
    return dataclasses.replace(picture, levels=levels)
