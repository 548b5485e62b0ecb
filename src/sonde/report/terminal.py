"""A report in a terminal: the findings, then one line per site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sonde._array_text import counted, indexed
from sonde.display import WholePaths
from sonde.report.tables import site_data

if TYPE_CHECKING:
    from rich.table import Table

    from sonde.report.report import Report

_MARKS = {"problem": ("bold red", "problem"), "warning": ("yellow", "warning"), "note": ("cyan", "note")}
_MOST_FINDINGS = 12


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
        parts += [Text(), WholePaths(_table(report))]
    return Group(*parts)


def _table(report: Report) -> Table:
    from rich.table import Table
    from rich.text import Text

    with_gradients = any(site.gradients for site in report.sites)
    table = Table("site", "array", "rms", "min", "max", *(["gradient rms"] * with_gradients), "bad")
    flagged = {f.path: f.severity for f in reversed(report.findings)}
    for site in report.sites:
        data = site_data(site)
        value, gradient = data["value"] or {}, data["gradient"] or {}
        cells = [_short(value.get(k)) for k in ("rms", "min", "max")]
        cells += [_short(gradient.get("rms"))] if with_gradients else []
        bad = (value.get("nonfinite") or 0) + (gradient.get("nonfinite") or 0)
        style = _MARKS[flagged[site.path]][0] if site.path in flagged else "red" if bad else ""
        kind = indexed(site.dtype, site.shape)
        table.add_row(*map(Text, (site.name, kind, *cells, str(bad) if bad else "")), style=style)
    return table


def _short(x: Any) -> str:
    return "-" if x is None else x if isinstance(x, str) else f"{x:.3g}"
