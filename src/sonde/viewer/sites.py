"""Operations about the sites of a run: the tree of them, and one of them in numbers and pictures."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde._array_text import short_place
from sonde.port.difference import distance
from sonde.report.plain_json import number
from sonde.tools.numerics.array_statistics import described, moments_of_whole
from sonde.viewer.arrays import Array
from sonde.viewer.changes import KINDS, Change, possible
from sonde.viewer.explained import gradient_values
from sonde.viewer.operations import Job, changes_of, operation, packed
from sonde.viewer.runs import Ran, Runs

_POINTS = 16  # of the small curve beside a site
_MOST_CELLS = 300_000  # of one picture


@operation
def sites(job: Job, subject: str, prompt: str | None = None) -> dict[str, Any]:
    """Every array that a run records, and which is shown first; nothing is run for it, if the program can be traced."""
    runs = job.runs(subject)
    arrays = runs.arrays(prompt)
    lines = {source: short_place(source) for source in {array.source for array in arrays}}
    cards = [_card(array) | {"source": lines[array.source]} for array in arrays]
    return {"sites": cards, "first": _first_shown(arrays), "complete": runs.fits(prompt)}


def _first_shown(arrays: Sequence[Array]) -> str:
    """The first site with attention, by its name and axes; the first of all, if there is none."""
    square = [array.path for array in arrays if array.is_square]
    named = [path for path in square if re.search(r"weight|prob|attention|pattern", path.rpartition("/")[2])]
    return next(iter([*named, *square, *(array.path for array in arrays)]), "")


@operation
def glances(job: Job, subject: str, prompt: str | None = None, changes: Any = ()) -> dict[str, Any]:
    """For every array, in the order of `sites`, its scale and a small curve; after changes, how far it has moved.

    This records everything, if it fits into the memory.
    """
    runs, made = job.runs(subject), changes_of(changes)
    run, before = runs.whole_run(prompt, made), runs.whole_run(prompt)
    listed = []
    for array in runs.arrays(prompt):
        place = array.path, array.call, array.part
        value, ran = run.value(*place), run.ran(*place[:2])
        glance = {} if value is None else _glance(value, array, ran)
        if value is not None and made:
            both = ran.where & before.ran(*place[:2]).where
            glance["moved"] = number(_moved(value, before.value(*place), both))
        listed.append(glance)
    return {"glances": listed, "bytes": runs.bytes, "memory": runs.memory}


def _card(array: Array) -> dict[str, Any]:
    return {
        "path": array.path,
        "call": array.call,
        "part": array.part,
        "shape": list(array.shape),
        "lead": array.lead,
        "axes": list(array.axes),
        "dtype": array.dtype,
        "bytes": array.bytes,
        "square": array.is_square,
        "leaf": array.leaf,
    }


def _glance(value: np.ndarray, array: Array, ran: Ran) -> dict[str, Any]:
    """The scale of a value, and the scale along its positions, or along its last axis."""
    if array.dtype.startswith("key") or not value.size:
        return {}
    if not ran.where.any():
        return {"idle": True}
    wide, computed = np.abs(_real(value)), ran.along(value)
    finite = np.isfinite(wide) & computed
    bad = int(computed.sum() - finite.sum())
    squares = np.where(finite, wide, 0) ** 2
    rms = math.sqrt(float(squares.sum(dtype=np.float64)) / max(int(finite.sum()), 1))
    axis = array.length_axis if array.length_axis is not None else wide.ndim - 1
    curve: list[float] = []
    if wide.ndim and wide.shape[axis] > 1:
        along = np.sqrt(squares.mean(tuple(d for d in range(wide.ndim) if d != axis)))
        curve = [float(part.mean()) for part in np.array_split(along, min(_POINTS, len(along)))]
    top = max(curve, default=0.0) or 1.0
    return {"rms": number(rms), "spark": [round(15 * x / top) for x in curve]} | ({"bad": bad} if bad else {})


def _moved(value: np.ndarray, before: np.ndarray | None, ran: np.ndarray | np.bool_) -> float | None:
    """The norm of the difference, relative to the value before, of what was computed both times."""
    if before is None or before.shape != value.shape or not ran.any():
        return None
    return distance(value[ran], before[ran]).norm


def _real(value: np.ndarray) -> np.ndarray:
    """A value as real numbers that can be drawn: of complex numbers, the magnitude."""
    return np.asarray(np.abs(value) if np.iscomplexobj(value) else value, np.float32)


@operation
def site(
    job: Job,
    subject: str,
    path: str,
    call: int = 0,
    part: int = 0,
    prompt: str | None = None,
    changes: Any = (),
    explained: Any = None,
) -> dict[str, Any]:
    """The statistics and the histogram of a value, or of its gradient if `explained` says of what."""
    runs, made = job.runs(subject), changes_of(changes)
    array = runs.array(prompt, path, call, part)
    value, ran = _values(runs, prompt, made, array, explained)
    statistics = described(moments_of_whole(value[ran.where]))
    counts = statistics.histogram
    used = np.flatnonzero(counts) if counts is not None else np.zeros(0, int)
    numbers = {
        name: number(getattr(statistics, name))
        for name in ("size", "mean", "std", "min", "max", "norm", "zeros", "nonfinite", "units", "dead")
    }
    moved = None
    if made:
        before, ran_before = _values(runs, prompt, (), array, explained)
        moved = _moved(value, before, ran.where & ran_before.where)
    reasons = {kind: possible(array, kind) for kind in KINDS}
    return {
        **_card(array),
        "source": short_place(array.source),
        "drawn": _first_axes(array.axes),
        "ran": [int(ran.where.sum()), ran.where.size],
        "iterations": None if ran.count is None else int(np.max(ran.count, initial=0)),
        "impossible": {kind: reason for kind, reason in reasons.items() if reason},
        "statistics": numbers,
        "histogram": {"first": int(used[0]), "counts": counts[used[0] : used[-1] + 1].tolist()}
        if counts is not None and used.size
        else None,
        "moved": number(moved),
    }


def _first_axes(axes: Sequence[str]) -> dict[str, int | None]:
    """Which axes are drawn at first: positions down, units across, and a picture for each head."""
    columns = len(axes) - 1
    inner = [i for i in range(columns) if axes[i] != "batch"]
    rows = next((i for i in inner if axes[i] == "length"), inner[0] if inner else len(axes) - 2 if columns else -1)
    each = next((i for i in range(columns) if axes[i].endswith("heads") and i != rows), None)
    return {"rows": rows, "columns": columns, "each": each}


@operation
def picture(
    job: Job,
    subject: str,
    path: str,
    rows: int,
    columns: int,
    call: int = 0,
    part: int = 0,
    index: Any = (),
    each: int | None = None,
    prompt: str | None = None,
    changes: Any = (),
    explained: Any = None,
    against: bool = False,
) -> dict[str, Any]:
    """A part of a value as rows by columns, or one such picture for each index along an axis.

    Args:
        job: The question.
        subject: The program.
        path: The path of the site.
        rows: The axis that goes down.
        columns: The axis that goes across.
        call: Which call of the site.
        part: Which array.
        index: For each axis, the index that is shown; ignored for those that are drawn.
        each: An axis of which every index is a picture.
        prompt: The prompt.
        changes: The changes.
        explained: Of what the gradient is shown; None shows the value.
        against: Whether the difference to the run without changes is shown.
    """
    runs, made = job.runs(subject), changes_of(changes)
    array = runs.array(prompt, path, call, part)
    value, ran = _values(runs, prompt, made, array, explained)
    where = ran.along(value)
    if against:
        before, ran_before = _values(runs, prompt, (), array, explained)
        value, where = _difference(value, before), where & ran_before.along(before)
    value = np.where(where, _real(value), np.nan)
    drawn = [axis for axis in (each, rows, columns) if axis is not None and 0 <= axis < value.ndim]
    if len(set(drawn)) != len(drawn):
        raise ValueError("a picture needs different axes for its rows and columns")
    chosen = [int(i) for i in index] + [0] * (value.ndim - len(index))
    for axis, (i, size) in enumerate(zip(chosen, value.shape)):
        if axis not in drawn and not 0 <= i < size:
            raise ValueError(f"{path} has {size} indices along {array.axes[axis]}, and not {i}")
    cut_out = value[tuple(slice(None) if axis in drawn else i for axis, i in enumerate(chosen[: value.ndim]))]
    whole = np.transpose(cut_out, [sorted(drawn).index(d) for d in drawn])
    whole = whole.reshape((1,) * (2 - whole.ndim) + whole.shape)
    cut = list(whole.shape)
    cut[-2] = min(cut[-2], max(1, _MOST_CELLS // max(cut[-1], 1)))
    cut[-1] = min(cut[-1], _MOST_CELLS)
    if len(cut) == 3:
        cut[0] = min(cut[0], max(1, _MOST_CELLS // max(cut[-1] * cut[-2], 1)))
    return {"values": packed(whole[tuple(slice(n) for n in cut)]), "of": list(whole.shape)}


def _difference(value: np.ndarray, before: np.ndarray) -> np.ndarray:
    # Small floats are subtracted as floats of 32 bits; integers as what holds them, not modulo their range.
    wide = np.complex64 if np.iscomplexobj(value) else np.float64
    return value.astype(wide) - before.astype(wide)


def _values(
    runs: Runs, prompt: str | None, changes: Sequence[Change], array: Array, explained: Any
) -> tuple[np.ndarray, Ran]:
    """A value, or its gradient, and where it was computed."""
    value = np.asarray(runs.value(prompt, changes, array.path, array.call, array.part))
    ran = runs.run(prompt, changes, array.path).ran(array.path, array.call)
    return (value if explained is None else gradient_values(runs, prompt, changes, explained)(array)), ran
