"""A report in a terminal: the findings, then one line per site.

If there are too many sites, those with the same name in all layers share one line, with the range over the layers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sonde._array_text import counted, indexed
from sonde.core import WholePaths
from sonde.report.site_data import Examined
from sonde.report.tables import site_data
from sonde.tools.numerics.families import family, natural

if TYPE_CHECKING:
    from sonde.report.report import Report

_MARKS = {"problem": ("bold red", "problem"), "warning": ("yellow", "warning"), "note": ("cyan", "note")}
_MOST_FINDINGS = 12
_MOST_SITES = 60


def shown(report: Report) -> Any:
    """A rich renderable."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Text(report.title, style="bold")
    head.append(f"  {counted(len(report.paths), 'site')}", style="dim")
    parts: list[Any] = [head, Text()]
    if not report.findings:
        parts += [Text("Nothing wrong was found.", style="green"), Text(report.checked, style="dim")]
    for f in report.findings[:_MOST_FINDINGS]:
        style, word = _MARKS[f.severity]
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_column(width=7)
        line.add_column()
        line.add_row(Text(word, style=style), Text(f.text))
        line.add_row("", Text(f.help, style="dim"))
        parts.append(line)
    if len(report.findings) > _MOST_FINDINGS:
        parts.append(Text(f"... and {len(report.findings) - _MOST_FINDINGS} more, on the page", style="dim"))
    if report.sites:
        parts += [Text(), WholePaths(_table(report, Table, Text))]
    return Group(*parts)


def _table(report: Report, Table: Any, Text: Any) -> Any:
    with_gradients = any(site.gradients for site in report.sites)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("site", "array"):
        table.add_column(name, overflow="fold")
    if len(report.sites) > _MOST_SITES:
        return _folded(report, table, Text, with_gradients)
    for name in ("rms", "min", "max", *(["gradient rms"] * with_gradients), "bad"):
        table.add_column(name, justify="right")
    flagged = {f.path: f.severity for f in reversed(report.findings)}
    for site in report.sites:
        data = site_data(site)
        value, gradient = data["value"] or {}, data["gradient"] or {}
        cells = [_short(value.get(k)) for k in ("rms", "min", "max")]
        cells += [_short(gradient.get("rms"))] if with_gradients else []
        bad = (value.get("nonfinite") or 0) + (gradient.get("nonfinite") or 0)
        style = _MARKS[flagged[site.path]][0] if site.path in flagged else ""
        kind = indexed(site.dtype, site.shape)
        table.add_row(Text(site.name, style=style), Text(kind), *cells, str(bad) if bad else "")
    return table


def _folded(report: Report, table: Any, Text: Any, with_gradients: bool) -> Any:
    """One line for all layers of a kind of site: the first layer, the last, and the range between."""
    for name in ("rms", "first", "last", *(["gradient rms"] * with_gradients), "bad"):
        table.add_column(name, justify="right")
    flagged = {f.path: f.severity for f in reversed(report.findings)}
    groups: dict[str, list[Examined]] = {}
    for site in report.sites:
        groups.setdefault(family(site.name), []).append(site)
    for members in list(groups.values())[:_MOST_SITES]:
        members = sorted(members, key=lambda site: natural(site.name))
        data = [site_data(site) for site in members]
        values = [(d["value"] or {}).get("rms") for d in data]
        bad = sum((d[kind] or {}).get("nonfinite") or 0 for d in data for kind in ("value", "gradient"))
        cells = [_range(values), _short(values[0]), _short(values[-1])]
        cells += [_range([(d["gradient"] or {}).get("rms") for d in data])] if with_gradients else []
        worst = next((flagged[site.path] for site in members if site.path in flagged), None)
        kinds = dict.fromkeys(indexed(site.dtype, site.shape) for site in members)
        kind = next(iter(kinds)) + (f" (+{len(kinds) - 1})" if len(kinds) > 1 else "")
        style = _MARKS[worst][0] if worst else ""
        table.add_row(Text(_name(members), style=style), Text(kind), *cells, str(bad) if bad else "")
    if len(groups) > _MOST_SITES:
        table.add_row(f"... and {len(groups) - _MOST_SITES} more, on the page")
    return table


def _name(members: Sequence[Examined]) -> str:
    """The name of a family: `blocks/{0..29}/out`, a pattern that captures it."""
    if len(members) == 1:
        return members[0].name
    first, last = (re.search(r"\d+", site.name) for site in (members[0], members[-1]))
    assert first is not None and last is not None
    return family(members[0].name).replace("*", f"{{{first[0]}..{last[0]}}}", 1)


def _range(numbers: Sequence[Any]) -> str:
    known = [x for x in numbers if isinstance(x, (int, float))]
    if not known:
        return "-"
    low, high = min(known), max(known)
    return _short(low) if len(known) == 1 or low == high else f"{_short(low)} to {_short(high)}"


def _short(x: Any) -> str:
    return "-" if x is None else x if isinstance(x, str) else f"{x:.3g}"
