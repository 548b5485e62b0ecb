"""How a report looks in a terminal: the findings, then one line per site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sonde.report.plain import counted
from sonde.report.tables import site_data

if TYPE_CHECKING:
    from sonde.report.report import Report

_MARKS = {"problem": ("bold red", "problem"), "warning": ("yellow", "warning"), "note": ("cyan", "note")}
_MOST_FINDINGS = 12
_MOST_SITES = 60


def shown(report: Report) -> Any:
    """A rich renderable."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    head = Text(report.title, style="bold")
    head.append(f"  {counted(len(report.paths), 'site')}", style="dim")
    parts: list[Any] = [head, Text()]
    if not report.findings:
        parts.append(Text("Nothing wrong was found.", style="green"))
    for f in report.findings[:_MOST_FINDINGS]:
        style, word = _MARKS[f.severity]
        line = Text()
        line.append(f"{word:<8}", style=style)
        line.append(f.text)
        parts.append(line)
        parts.append(Padding(Text(f.help, style="dim"), (0, 0, 0, 8)))
    if len(report.findings) > _MOST_FINDINGS:
        parts.append(Text(f"... and {len(report.findings) - _MOST_FINDINGS} more, on the page", style="dim"))
    if report.sites:
        parts += [Text(), _table(report, Table, Text)]
    return Group(*parts)


def _table(report: Report, Table: Any, Text: Any) -> Any:
    with_gradients = any(site.gradients for site in report.sites)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("site", "array"):
        table.add_column(name, overflow="fold")
    for name in ("rms", "min", "max", *(["gradient rms"] * with_gradients), "bad"):
        table.add_column(name, justify="right")
    flagged = {f.path: f.severity for f in reversed(report.findings)}
    for site in report.sites[:_MOST_SITES]:
        data = site_data(site)
        value, gradient = data["value"] or {}, data["gradient"] or {}
        cells = [_short(value.get(k)) for k in ("rms", "min", "max")]
        cells += [_short(gradient.get("rms"))] if with_gradients else []
        bad = (value.get("nonfinite") or 0) + (gradient.get("nonfinite") or 0)
        style = _MARKS[flagged[site.path]][0] if site.path in flagged else ""
        kind = f"{site.dtype}[{','.join(map(str, site.shape))}]"
        table.add_row(Text(site.name, style=style), Text(kind), *cells, str(bad) if bad else "")
    if len(report.sites) > _MOST_SITES:
        table.add_row(f"... and {len(report.sites) - _MOST_SITES} more, on the page")
    return table


def _short(x: Any) -> str:
    return "-" if x is None else x if isinstance(x, str) else f"{x:.3g}"
