"""A comparison as a page that opens from disk: the verdict, the error over the depth, and both programs."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sonde._array_text import short_place

if TYPE_CHECKING:
    from sonde.tools.comparison.compare import Comparison
    from sonde.tools.comparison.differences import Drift

_WIDTH, _HEIGHT, _LEFT, _BELOW = 900, 260, 60, 24
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --wrong: #c62828; --right: #2e7d32; --limit: #888 }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.3rem } pre { white-space: pre-wrap; background: #8881; padding: .8rem; border-radius: 6px }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .2rem .6rem; border-top: 1px solid var(--line) }
td.number { text-align: right; font-variant-numeric: tabular-nums } tr.differs td { color: var(--wrong) }
svg { width: 100%; height: auto } text { font-size: 11px; fill: currentColor }
.limit { stroke: var(--limit); fill: none; stroke-dasharray: 4 3 }
.error { stroke: var(--right); fill: none; stroke-width: 1.5 }
circle { fill: var(--right) } circle.differs { fill: var(--wrong) }
.note { opacity: .7 }
"""


def page_of(comparison: Comparison) -> str:
    """The page."""
    first = "no difference" if comparison.first is None else f"first difference: {comparison.first.place}"
    values = [d for d in comparison.drifts if not d.gradient]
    gradients = [d for d in (*comparison.drifts, *comparison.results) if d.gradient]
    results = [d for d in comparison.results if not d.gradient]
    parts = [
        f"<h1>{html.escape(first)}</h1><pre>{html.escape(str(comparison))}</pre>",
        "<h2>Error over the depth</h2>",
        depth_picture([*values, *results]),
    ]
    for title, drifts in (("Values", values), ("Results", results), ("Gradients", gradients)):
        if drifts:
            parts.append(f"<h2>{title}</h2>{_table(drifts)}")
    head = f"<meta charset='utf-8'><title>{html.escape(first)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def depth_picture(drifts: Sequence[Drift]) -> str:
    """The relative error of each value in the order of the first program, and how much rounding explains, as SVG."""
    finite = [(i, d) for i, d in enumerate(drifts) if np.isfinite(d.rel_norm)]
    if not finite:
        return "<p class='note'>No values that can be drawn.</p>"
    # Equal values have no logarithm: they are drawn at the lower edge.
    above = [x for _, d in finite for x in (d.rel_norm, d.limit or 0.0) if 0 < x < np.inf]
    low, high = (np.floor(np.log10(min(above))) - 1, np.ceil(np.log10(max(above)))) if above else (-8.0, 0.0)
    across = (_WIDTH - _LEFT - 10) / max(len(drifts) - 1, 1)

    def at(i: int, value: float) -> tuple[float, float]:
        level = np.clip(np.log10(value), low, high) if value > 0 else low
        return _LEFT + i * across, 10 + (_HEIGHT - _BELOW - 10) * (high - level) / max(high - low, 1)

    lines = []
    for power in range(int(low), int(high) + 1):
        y = at(0, 10.0**power)[1]
        lines.append(f"<line x1='{_LEFT}' x2='{_WIDTH - 10}' y1='{y:.1f}' y2='{y:.1f}' stroke='#8883'/>")
        lines.append(f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>1e{power}</text>")
    for name, points in (
        ("limit", [at(i, d.limit) for i, d in finite if d.limit is not None and np.isfinite(d.limit)]),
        ("error", [at(i, d.rel_norm) for i, d in finite]),
    ):
        lines.append(f"<polyline class='{name}' points='{' '.join(f'{x:.1f},{y:.1f}' for x, y in points)}'/>")
    for i, d in finite:
        x, y = at(i, d.rel_norm)
        label = html.escape(f"{d.place}: {d.rel_norm:.2g}")
        kind = " class='differs'" if d.differs else ""
        lines.append(f"<circle{kind} cx='{x:.1f}' cy='{y:.1f}' r='3'><title>{label}</title></circle>")
    caption = "relative error of each value, in the order of the first program; dashed: what rounding explains"
    lines.append(f"<text x='{_LEFT}' y='{_HEIGHT - 6}'>{caption}</text>")
    return f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img'>{''.join(lines)}</svg>"


def _table(drifts: Sequence[Drift]) -> str:
    headers = ("first program", "second program", "matched by", "beyond", "max abs", "rel norm", "allowed", "")
    rows = []
    for d in drifts:
        texts = [d.place, d.second or d.place, d.by]
        numbers = [f"{d.beyond:,} of {d.size:,}", f"{d.max_abs:.3g}", f"{d.rel_norm:.3g}"]
        numbers.append("" if d.limit is None else f"{d.limit:.3g}")
        last = "; ".join(filter(None, [d.note, d.layout, short_place(d.source) if d.source else ""]))
        cells = [f"<td>{html.escape(text)}</td>" for text in texts]
        cells += [f"<td class='number'>{text}</td>" for text in numbers]
        cells.append(f"<td class='note'>{html.escape(last)}</td>")
        rows.append(f"<tr{' class=differs' if d.differs else ''}>{''.join(cells)}</tr>")
    return f"<table><tr>{''.join(f'<th>{h}</th>' for h in headers)}</tr>{''.join(rows)}</table>"
