"""Operations that follow a training run: the file that `monitor` or `sonde run --monitor` writes, while it grows.

A line is a step with its numbers: `{"step": 10, "loss": 0.5, "blocks/3/h/norm": 1.25}`. What is read once is kept, as
columns; a question reads what was written since. A last line that is not finished waits for its end, and lines that no
step can be read from are counted and told.
"""

from __future__ import annotations

import bisect
import json
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sonde.report.plain_json import number
from sonde.tools.numerics.families import families
from sonde.tools.training.alerts import RULES, Watchdog
from sonde.viewer.operations import Job, operation, packed

_MOST_ALERTS = 500
_LARGEST_STEP = 2**53  # up to which a browser knows every integer
_WATCHING = 0.5  # seconds for the rules in one question


class Series:
    """One number of a run over its steps.

    Attributes:
        rows: In which rows of the run it is written.
        values: The number there; NaN where it was not finite.
    """

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.values: list[float] = []


class TrainingRun:
    """A file of JSON lines, read as far as it is written.

    Args:
        path: The file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self.lock = threading.RLock()
        self.clear()

    def clear(self) -> None:
        """Forgets what was read; it is read again when it is asked for."""
        self.steps: list[int] = []
        self.series: dict[str, Series] = {}
        self.unreadable = 0
        self.alerts: list[dict[str, Any]] = []
        self.watched = 0  # the number of rows that the rules have seen
        self._watchdog = Watchdog(RULES, self._note)
        self._end = 0

    @property
    def card(self) -> dict[str, Any]:
        """What the page needs to know of it."""
        return {"kind": "run", "name": self.name, "file": str(self.path.resolve())}

    def _note(self, alert: Any) -> None:
        if len(self.alerts) < _MOST_ALERTS:
            self.alerts.append({"step": alert.step, "rule": alert.rule, "name": alert.name, "text": alert.text})

    def read(self) -> None:
        """Reads what was written since the last time. A file that became shorter was begun anew."""
        with self.lock:
            size = self.path.stat().st_size
            if size < self._end:
                self.clear()
            with self.path.open("rb") as file:
                file.seek(self._end)
                text = file.read()
            whole, newline, _ = text.rpartition(b"\n")
            if not newline:
                return
            self._end += len(whole) + 1
            for line in whole.split(b"\n"):
                if line.strip():
                    self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            step = int(row.pop("step"))
            if abs(step) > _LARGEST_STEP:
                raise ValueError(f"no step has the number {step}")
            numbers = {
                name: math.nan if x is None else float(x)
                for name, x in row.items()
                if x is None or (isinstance(x, (int, float)) and not isinstance(x, bool))
            }
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            self.unreadable += 1
            return
        at = len(self.steps)
        self.steps.append(step)
        for name, x in numbers.items():
            series = self.series.setdefault(name, Series())
            series.rows.append(at)
            series.values.append(x)

    def by_step(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The steps at which a number was written, in their order, and its values there.

        A run that was resumed from a checkpoint writes some steps again: what was written last is taken.
        """
        if name not in self.series:
            raise ValueError(f"the run has no number {name!r}")
        one = self.series[name]
        steps, values = np.asarray(self.steps, np.int64)[one.rows], np.asarray(one.values)
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
        is_last = np.append(steps[1:] != steps[:-1], True)
        return steps[is_last], values[is_last]

    def at_step(self, step: int) -> tuple[int, dict[str, float]]:
        """The step at or before the one that is asked for, and all that was written there."""
        steps = np.asarray(self.steps, np.int64)
        own = int(max(steps[steps <= step], default=steps.min()))
        values = {}
        for row in np.flatnonzero(steps == own):
            for name, one in self.series.items():
                at = bisect.bisect_left(one.rows, row)
                if at < len(one.rows) and one.rows[at] == row:
                    values[name] = one.values[at]
        return own, values

    def watch(self, seconds: float) -> None:
        """Applies the rules of `monitor` to the rows that they have not seen, for some time."""
        ends = time.monotonic() + seconds
        cursors = {name: int(np.searchsorted(one.rows, self.watched)) for name, one in self.series.items()}
        while self.watched < len(self.steps) and time.monotonic() < ends:
            row = {}
            for name, one in self.series.items():
                at = cursors[name]
                if at < len(one.rows) and one.rows[at] == self.watched:
                    row[name] = one.values[at]
                    cursors[name] += 1
            self._watchdog.look(self.steps[self.watched], row)
            self.watched += 1


def _run(job: Job, subject: str) -> TrainingRun:
    training = job.subjects.get(subject)
    if not isinstance(training, TrainingRun):
        raise ValueError(f"there is no training run {subject!r} here")
    training.read()
    return training


@operation
def run(job: Job, subject: str) -> dict[str, Any]:
    """The names of all numbers of a run, and its families of layers."""
    training = _run(job, subject)
    with training.lock:
        return {
            "steps": len(training.steps),
            "last": training.steps[-1] if training.steps else None,
            "names": list(training.series),
            "families": [
                {"name": name, "members": [member for member, _ in members]}
                for name, members in families((name, None) for name in training.series).items()
                if len(members) > 1
            ],
            "unreadable": training.unreadable,
        }


@operation
def alerts(job: Job, subject: str) -> dict[str, Any]:
    """What the rules of `monitor` find in a run, and how many of its rows they have seen; ask again until all are."""
    training = _run(job, subject)
    with training.lock:
        training.watch(_WATCHING)
        return {"alerts": training.alerts, "watched": training.watched, "rows": len(training.steps)}


@operation
def step(job: Job, subject: str, step: int) -> dict[str, Any]:
    """Everything that was written at a step, or at the one before it that is nearest, and its alerts."""
    training = _run(job, subject)
    with training.lock:
        if not training.steps:
            raise ValueError("nothing was written yet")
        own, values = training.at_step(int(step))
        alerts_there = [alert for alert in training.alerts if alert["step"] == own]
        return {"step": own, "values": {name: number(x) for name, x in values.items()}, "alerts": alerts_there}


@operation
def series(job: Job, subject: str, names: Sequence[str]) -> dict[str, Any]:
    """Some numbers of a run: the steps at which each was written, and its values there."""
    training = _run(job, subject)
    with training.lock:
        lines = {name: training.by_step(name) for name in names}
        columns = {name: {"steps": packed(x, "f64"), "values": packed(y)} for name, (x, y) in lines.items()}
        return {"columns": columns, "rows": len(training.steps)}
