"""The source of the functions with sites, with the statistics of each line's values in the margin.

Functions are ranked by their most unusual line: one with a finding, with NaN, or whose scale is far from that of the
other sites. So one line of thousands can be found.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import linecache
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde._array_text import indexed
from sonde.report.findings.finding import SEVERITIES, Finding
from sonde.report.site_data import Examined

_MOST_LINES = 120  # of one function
_BY_SEVERITY = {name: 1000.0 * (len(SEVERITIES) - i) for i, name in enumerate(SEVERITIES)}


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line of source.

    Attributes:
        number: Its number in the file.
        code: Its text.
        sites: What is known of the values made on it, in the order of the program.
        unusual: How unusual they are: 0 is usual.
    """

    number: int
    code: str
    sites: tuple[Examined, ...] = ()
    unusual: float = 0.0

    @property
    def margin(self) -> str:
        """The type of the last value, and over all values and calls the range, rms, gradient norm and share of NaN."""
        return _margin(self.sites) if self.sites else ""


@dataclasses.dataclass(frozen=True, slots=True)
class AnnotatedFunction:
    """A function with sites.

    Attributes:
        name: Its name, with those of the classes and functions around it.
        file: Its file.
        lines: Its lines.
    """

    name: str
    file: str
    lines: tuple[Line, ...]

    @property
    def worst(self) -> Line:
        """The most unusual line."""
        return max(self.lines, key=lambda line: line.unusual)

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        worst = self.worst
        title = f"{self.name}, {self.file}" + (f": worst line {worst.number}" if worst.unusual >= 1 else "")
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
        table.add_column(justify="right", style="dim")
        table.add_column(overflow="fold")
        table.add_column(style="cyan", overflow="fold")
        for line in self.lines:
            style = "bold red" if line is worst and line.unusual >= 1 else "yellow" if line.unusual >= 1000 else ""
            table.add_row(str(line.number), Text(line.code, style=style), Text(line.margin))
        return table


def annotated_source(sites: Sequence[Examined], findings: Sequence[Finding]) -> tuple[AnnotatedFunction, ...]:
    """The functions that the sites are in, the one with the most unusual line first."""
    scores = _unusual(sites, findings)
    by_line: dict[tuple[str, int], list[int]] = {}
    for index, site in enumerate(sites):
        file, _, number = site.source.rpartition(":")
        if file and number.isdigit():
            by_line.setdefault((file, int(number)), []).append(index)
    groups: dict[tuple[str, str, int, int], set[int]] = {}
    for file, number in by_line:
        span = _function_at(file, number)
        if span is not None:
            groups.setdefault((file, *span), set()).add(number)
    functions: list[AnnotatedFunction] = []
    for (file, name, first, last), numbers in groups.items():
        shown = range(first, min(last, max(*numbers, first) + 1, first + _MOST_LINES) + 1)
        lines = [
            Line(
                number,
                linecache.getline(file, number).rstrip("\n"),
                tuple(sites[i] for i in by_line.get((file, number), ())),
                max((scores[i] for i in by_line.get((file, number), ())), default=0.0),
            )
            for number in shown
        ]
        functions.append(AnnotatedFunction(name, file, tuple(lines)))
    return tuple(sorted(functions, key=lambda function: -function.worst.unusual))


def _unusual(sites: Sequence[Examined], findings: Sequence[Finding]) -> list[float]:
    """How unusual each site is: by its findings, then NaNs, then how far its scale is from the median."""
    by_path: dict[str, float] = {}
    for finding in findings:
        for path in (finding.path, *finding.also):
            by_path[path] = max(by_path.get(path, 0.0), _BY_SEVERITY[finding.severity])
    scales = [_log_rms(site) for site in sites]
    finite = [scale for scale in scales if math.isfinite(scale)]
    usual = float(np.median(finite)) if finite else 0.0
    return [
        by_path.get(site.path, 0.0)
        + 100.0 * _bad_share(site)
        + (min(abs(scale - usual), 50.0) / 10 if math.isfinite(scale) else 0.0)
        for site, scale in zip(sites, scales)
    ]


def _log_rms(site: Examined) -> float:
    rms = max((step.rms for step in site.values if step.rms > 0), default=math.nan)
    return math.log10(rms)


def _bad_share(site: Examined) -> float:
    steps = (*site.values, *site.gradients)
    size = sum(step.statistics.size for step in steps)
    return sum(step.statistics.nonfinite or 0 for step in steps) / size if size else 0.0


def _margin(sites: Sequence[Examined]) -> str:
    last = sites[-1]
    parts = [indexed(last.dtype, last.shape) if last.dtype else ""]
    steps = [step for site in sites for step in site.values]
    lows = [step.statistics.min for step in steps if step.statistics.min is not None]
    highs = [step.statistics.max for step in steps if step.statistics.max is not None]
    if np.isfinite(lows).any():
        parts.append(f"{np.nanmin(lows):.3g} to {np.nanmax(highs):.3g}")
    scales = [step.rms for step in steps if math.isfinite(step.rms)]
    if scales:
        parts.append(f"rms {max(scales):.3g}")
    norms = [step.statistics.norm for site in sites for step in site.gradients if step.statistics.norm is not None]
    if norms:
        bad = any(step.statistics.nonfinite for site in sites for step in site.gradients)
        parts.append("gradient not finite" if bad else f"gradient {math.hypot(*norms):.3g}")
    size = sum(step.statistics.size for step in steps)
    bad_count = sum(step.statistics.nonfinite or 0 for step in steps)
    if bad_count:
        parts.append(f"{bad_count / size:.0%} not finite" if bad_count / size >= 0.01 else f"{bad_count} not finite")
    if len(sites) > 1:
        parts.append(f"{len(sites)} sites")
    return "  ".join(filter(None, parts))


def _function_at(file: str, number: int) -> tuple[str, int, int] | None:
    """The innermost function around a line: its name, first and last line; the line alone outside of functions."""
    best: tuple[str, int, int] | None = None
    for name, first, last in _functions(file):
        if first <= number <= last and (best is None or last - first <= best[2] - best[1]):
            best = name, first, last
    if best is None and linecache.getline(file, number):
        return "(module)", number, number
    return best


@functools.lru_cache(maxsize=64)
def _functions(file: str) -> tuple[tuple[str, int, int], ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    functions: list[tuple[str, int, int]] = []

    def visit(node: ast.AST, around: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            if is_function or isinstance(child, ast.ClassDef):
                names = (*around, child.name)
                if is_function:
                    functions.append((".".join(names), child.lineno, child.end_lineno or child.lineno))
                visit(child, names)
            else:
                visit(child, around)

    visit(tree, ())
    return tuple(functions)
