"""Timing and reporting that all benchmarks share.

Every figure is a ratio to something measured in the same process at the same time. Contenders take turns,
in an order that rotates, so that other load on the machine affects all of them alike; the best of many calls counts,
since noise only adds. The base also runs a second time under the name `control` (if it is several functions, with the
next of them): how far that ratio is from 1 is the resolution of the measurement.

Sharp edges: the garbage collector is off while calls are timed, as in `timeit`, and runs between rounds. A
contender is called several times before it is timed, so what is measured is the steady state; to measure a first call,
make a new function in every call. Python takes and returns the memory of its call stack in pieces of 16 KB, so a
function that calls others across the border of two is slower by some percent, at whichever depth that is: turns are
taken at different depths. Two compiled programs that are the same differ by up to a tenth, by where they and their
buffers are: a contender may be several functions that do the same, which take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax

CONTROL = "control"
GROUPS = 5
# Measuring goes on until the base agrees with itself this well, and every contender has come this near to its best time
# in this many turns, but not longer than this many times the time given: a shared machine may be slow for seconds.
AGREED = 0.02
AGREEING_TURNS = 3
PATIENCE = 5
DEPTHS = range(0, 80, 8)  # of some 200 bytes each: together the 16 KB


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        question: What is compared with what.
        ratio: What was measured.
        bound: The largest value allowed; None for a figure without a bound.
        control: The ratio of the base to itself, for a time.
        spread: How far the control typically is from 1 in a part of the rounds, for a time.
        allowance: What is subtracted from the ratio before it is compared with the bound: the spread, or 0.
        detail: Absolute figures.
    """

    question: str
    ratio: float
    bound: float | None
    control: float | None = None
    spread: float | None = None
    allowance: float = 0.0
    detail: str = ""

    @property
    def verdict(self) -> str:
        if self.bound is None:
            return "-"
        return "ok" if self.ratio - self.allowance <= self.bound else "MISSED"


@dataclasses.dataclass(frozen=True)
class Times:
    """The best (or median) time of each contender in seconds, and how far apart two times of the same thing are."""

    base: str
    best: dict[str, float]
    spread: float

    def row(self, name: str, question: str, bound: float | None, *, beyond_spread: bool = False) -> Row:
        """The ratio of a contender to the base."""
        return Row(
            question,
            self.best[name] / self.best[self.base],
            bound,
            control=self.best[CONTROL] / self.best[self.base],
            spread=self.spread,
            allowance=self.spread if beyond_spread else 0.0,
            detail=f"{_seconds(self.best[name])} against {_seconds(self.best[self.base])}",
        )


def interleaved(
    contenders: dict[str, Callable[[], Any] | Sequence[Callable[[], Any]]],
    *,
    seconds: float = 8.0,
    turn: float = 0.004,
    min_rounds: int = 10,
    wait: bool = True,
    clock: Callable[[], float] = time.perf_counter,
    before: Mapping[str, Callable[[], Any]] = MappingProxyType({}),
    of_turns: Callable[[Sequence[float]], float] = min,
) -> Times:
    """Times functions of no arguments in turns. The first one is the base of all ratios.

    Args:
        contenders: The functions, by name; or several that do the same, of which the best counts.
        seconds: How long to measure, all contenders together; longer if the times do not agree by then.
        turn: How long one turn of one contender lasts, at least one call.
        min_rounds: How many rounds there are at least.
        wait: Whether a call ends when its arrays are ready (run time), or when it returns (cost of calling).
        clock: The clock. `time.thread_time` ignores other programs, for work that is only Python.
        before: What to run before each call of a contender, by name; it is not timed.
        of_turns: Which of its turns counts for a contender: the best, or `statistics.median` where the times of calls
            are spread by the state of memory, so that the best is a matter of luck.
    """
    base = next(iter(contenders))
    alike = {name: [fns] if callable(fns) else [*fns] for name, fns in contenders.items()}
    alike[CONTROL] = alike[base]
    calls = {name: min(_calls_per_turn(fn, turn, before.get(name)) for fn in alike[name]) for name in contenders}
    calls[CONTROL] = calls[base]
    names = list(alike)
    best_of_turn: dict[str, list[float]] = {name: [] for name in names}
    start = time.perf_counter()
    done = 0

    def settled() -> bool:
        taken = time.perf_counter() - start
        if done < min_rounds or taken < seconds:
            return False
        if taken > PATIENCE * seconds:
            return True
        best = {name: sorted(turns)[:AGREEING_TURNS] for name, turns in best_of_turn.items()}
        near = of_turns is not min or all(turns[-1] < (1 + AGREED) * turns[0] for turns in best.values())
        return near and abs(of_turns(best_of_turn[CONTROL]) / of_turns(best_of_turn[base]) - 1) < AGREED

    gc.collect()
    gc.freeze()  # what is there stays: collecting between rounds then takes no time
    gc.disable()
    try:
        while not settled():
            shift = done % len(names)
            for name in names[shift:] + names[:shift]:
                fn = alike[name][(done + (name == CONTROL)) % len(alike[name])]
                if calls[name] > 1:  # the turn before had the caches
                    jax.block_until_ready(fn())
                depth = DEPTHS[done % len(DEPTHS)]
                best_of_turn[name].append(_turn(fn, wait, clock, before.get(name), calls[name], depth=depth))
            gc.collect()
            done += 1
    finally:
        gc.enable()
        gc.unfreeze()
    best = {name: of_turns(times) for name, times in best_of_turn.items()}
    parts = [slice(i, None, GROUPS) for i in range(GROUPS)]
    away = [abs(of_turns(best_of_turn[CONTROL][p]) / of_turns(best_of_turn[base][p]) - 1) for p in parts]
    return Times(base, best, statistics.median(away))


def _calls_per_turn(fn: Callable[[], Any], turn: float, before: Callable[[], Any] | None) -> int:
    for _ in range(2):
        jax.block_until_ready(fn())
    return max(1, min(500, int(turn / min(_time(fn, True, time.perf_counter, before) for _ in range(3)))))


def _turn(
    fn: Callable[[], Any],
    wait: bool,
    clock: Callable[[], float],
    before: Callable[[], Any] | None,
    calls: int,
    depth: int,
) -> float:
    """The best time of some calls, at a given depth of the call stack."""
    if depth:
        return _turn(fn, wait, clock, before, calls, depth - 1)
    return min(_time(fn, wait, clock, before) for _ in range(calls))


def _time(fn: Callable[[], Any], wait: bool, clock: Callable[[], float], before: Callable[[], Any] | None) -> float:
    if before is not None:
        before()
    start = clock()
    result = fn()
    if wait:
        jax.block_until_ready(result)
    taken = clock() - start
    if not wait:
        jax.block_until_ready(result)
    return taken


@dataclasses.dataclass(frozen=True)
class Cost:
    """XLA's figures for a compiled program: operations and bytes."""

    flops: float
    peak: int
    temporary: int


def cost(fn: Callable[..., Any], *args: Any) -> Cost:
    """Compiles a jitted function for arguments, without running it."""
    compiled = fn.lower(*args).compile()
    memory = compiled.memory_analysis()
    return Cost(
        compiled.cost_analysis()["flops"],
        memory.peak_memory_in_bytes,
        memory.temp_size_in_bytes,
    )


def against(question: str, bound: float | None, mine: float, base: float, unit: str) -> Row:
    """A row for a figure that has no noise."""
    return Row(question, mine / base, bound, detail=f"{mine:,.0f} against {base:,.0f} {unit}")


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    cells = [("question", "bound", "ratio", "control", "spread", "verdict", "")]
    for row in rows:
        cells.append(
            (
                row.question,
                _number(row.bound),
                _number(row.ratio),
                _number(row.control),
                _number(row.spread),
                row.verdict,
                row.detail,
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["  ".join([c[0].ljust(widths[0]), *map(str.rjust, c[1:6], widths[1:6]), c[6]]).rstrip() for c in cells]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def main(measure: Callable[[], Sequence[Row]]) -> None:
    """Runs a benchmark: measures and prints, as a table or, for `run.py`, as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true", help="print rows as JSON instead of a table")
    asked, _ = parser.parse_known_args()
    rows = measure()
    print(json.dumps([dataclasses.asdict(row) for row in rows]) if asked.json else table(rows))


def _number(x: float | None) -> str:
    return "-" if x is None else f"{x:.3f}"


def _seconds(t: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if t >= size:
            return f"{t / size:.3g} {unit}"
    return f"{t / 1e-9:.3g} ns"
