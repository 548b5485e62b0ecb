"""Tables whose first column is a path: rich tables in terminals, HTML in notebooks.

Where a table does not fit the terminal, a path has a line of its own and the numbers stand below it, still in columns:
no path is cut. Long tables are folded: layers that are alike are one row, with the range of their numbers.
"""

from __future__ import annotations

import dataclasses
import html
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sonde.display.tree_view import FRAME, MOST_OPEN

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table
    from rich.text import Text

MOST_LINES = 60  # in a terminal, before layers that are alike become one line
_LAYER = re.compile(r"((?:.*?/)??)(\d+)(/.*)")  # the first number in a path is that of the layer
_BARS = set("▁▂▃▄▅▆▇█ ")
_GAP = "  "
_INDENT = 4  # of the numbers below a path


def family_of(path: str) -> tuple[str, str]:
    """A path with a star in place of the number of its layer, and the number; the path and "" if it has none."""
    layer = _LAYER.fullmatch(path)
    return (path, "") if layer is None else (f"{layer[1]}*{layer[3]}", layer[2])


def family_path(family: str, numbers: Sequence[str]) -> str:
    """The path of layers that are alike, as in `blocks/{0..29}/out`: a pattern that captures them."""
    whole = sorted({int(n) for n in numbers if n})
    # Neighbors have the same difference to their position: 0, 1, 2, 5, 7, 8 are the runs 0..2, 5 and 7..8.
    runs = [list(run) for _, run in itertools.groupby(enumerate(whole), lambda pair: pair[1] - pair[0])]
    listed = ",".join(f"{run[0][1]}..{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs)
    if not whole:
        return family
    return family.replace("*", listed if len(whole) == 1 else f"{{{listed}}}", 1)


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """A row of a table; `style` is empty unless something is wrong."""

    cells: Sequence[Text]
    style: str

    @property
    def path(self) -> str:
        return self.cells[0].plain


def _headers_and_rows(table: Table) -> tuple[list[str], list[_Row]]:
    """The columns of a table that are not empty."""
    from rich.text import Text

    def as_text(cell: Any) -> Text:
        return cell if isinstance(cell, Text) else Text(str(cell))

    columns = [[as_text(cell) for cell in column.cells] for column in table.columns]
    used = [i for i, cells in enumerate(columns) if i == 0 or any(cell.plain.strip(" -") for cell in cells)]
    headers = [_plain(table.columns[i].header) for i in used]
    rows = zip(*(columns[i] for i in used))
    return headers, [_Row(cells, str(row.style or "")) for row, cells in zip(table.rows, rows)]


def _plain(cell: Any) -> str:
    return cell.plain if hasattr(cell, "plain") else str(cell)


# ---------------------------------------------------------------------------------------------------------------------
# Folding
# ---------------------------------------------------------------------------------------------------------------------


def _folded(rows: Sequence[_Row]) -> list[_Row]:
    """One row for layers that are alike but for their numbers; rows in which something is wrong stay by themselves."""
    families: dict[tuple[str, ...], list[_Row]] = {}
    for row in rows:
        kinds = ["" if _ends(cell.plain) or set(cell.plain) <= _BARS else cell.plain for cell in row.cells[1:]]
        families.setdefault((family_of(row.path)[0], row.style, *kinds), []).append(row)
    return [_merged(key[0], members) if len(members) > 1 else members[0] for key, members in families.items()]


def _merged(family: str, members: Sequence[_Row]) -> _Row:
    from rich.text import Text

    columns = zip(*([cell.plain for cell in row.cells[1:]] for row in members))
    path = family_path(family, [family_of(row.path)[1] for row in members])
    return _Row([Text(path), *(Text(_together(column)) for column in columns)], members[0].style)


def _together(texts: Sequence[str]) -> str:
    """What the cells of a column have in common: their text, or the range of their numbers; empty for bars."""
    if len(set(texts)) == 1:
        return texts[0]
    ends = [pair for text in texts if (pair := _ends(text))]
    if not ends:
        return ""
    low, high = min((low for low, _ in ends), key=_number), max((high for _, high in ends), key=_number)
    return low if low == high else f"{low} to {high}"


def _ends(text: str) -> tuple[str, str] | None:
    """The two numbers of a cell such as `-1 to 2.5`, twice the same for one number; None if it has none, or NaN."""
    low, _, high = text.partition(" to ")
    pair = low, high or low
    return None if any(math.isnan(_number(end)) for end in pair) else pair


def _number(text: str) -> float:
    try:
        return float(text.replace(",", "").removeprefix("x"))
    except ValueError:
        return math.nan


# ---------------------------------------------------------------------------------------------------------------------
# Terminals
# ---------------------------------------------------------------------------------------------------------------------


class WholePaths:
    """A table of rich whose first column is never cut, and which is folded if it is long."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        from rich.text import Text

        headers, rows = _headers_and_rows(self.table)
        if self.table.title:
            yield Text(_plain(self.table.title), style="bold")
        if len(rows) > MOST_LINES and all(row.path for row in rows) and len(fewer := _folded(rows)) < len(rows):
            yield Text("Layers that are alike share a row, with the range of their numbers.", style="dim")
            rows = fewer
        names = [Text(header, style="dim") for header in headers]
        columns = [list(column) for column in zip(names, *(row.cells for row in rows))]
        widths = [max(cell.cell_len for cell in column) for column in columns]
        is_right = [_is_numeric(cell.plain for cell in column[1:]) for column in columns]
        lines = _lines_of(widths, options.max_width)
        for cells, style in ((names, ""), *((row.cells, row.style) for row in rows)):
            for number, line in enumerate(lines):
                parts = [_aligned(cells[i], widths[i], right=is_right[i]) for i in line]
                text = Text(" " * _INDENT if number else "", style=style or ("dim" if number else ""), overflow="fold")
                text.append_text(Text(_GAP).join(parts))
                text.rstrip()
                if text.plain:
                    yield text


def _lines_of(widths: Sequence[int], most: int) -> list[list[int]]:
    """Which columns stand in each line of a row: all in one if they fit, else the path alone in the first."""
    if sum(widths) + len(_GAP) * (len(widths) - 1) <= most:
        return [list(range(len(widths)))]
    lines, room = [[0]], 0
    for i in range(1, len(widths)):
        if room < widths[i]:
            lines.append([])
            room = most - _INDENT
        lines[-1].append(i)
        room -= widths[i] + len(_GAP)
    return lines


def _aligned(cell: Text, width: int, *, right: bool) -> Text:
    aligned = cell.copy()
    aligned.align("right" if right else "left", width)
    return aligned


def _is_numeric(texts: Iterable[str]) -> bool:
    numbers = [text for text in texts if text.strip(" -") and text not in ("NaN", "nan")]
    return all(map(_ends, numbers)) and bool(numbers)


# ---------------------------------------------------------------------------------------------------------------------
# Notebooks
# ---------------------------------------------------------------------------------------------------------------------


def table_html(table: Table) -> str:
    """A table of rich as a table of HTML, with whole cells; folded if it is long."""
    headers, rows = _headers_and_rows(table)
    is_right = [_is_numeric(row.cells[i].plain for row in rows) for i in range(len(headers))]
    align = [f"text-align:{'right' if right else 'left'};padding:0 10px 0 0" for right in is_right]
    names = "".join(
        f'<th style="{style};opacity:.7">{html.escape(header)}</th>' for header, style in zip(headers, align)
    )

    def drawn(some: Sequence[_Row]) -> str:
        style = "border-collapse:collapse;background:none;font:inherit;margin:0"
        body = "".join(
            f"<tr>{''.join(map(_cell_html, row.cells, align, [row.style] * len(align)))}</tr>" for row in some
        )
        return f'<table style="{style}"><tr>{names}</tr>{body}</table>'

    title = f'<div style="font-weight:700;white-space:pre-wrap">{html.escape(_plain(table.title or ""))}</div>'
    body = drawn(rows[:MOST_OPEN])
    if len(rows) > MOST_OPEN:
        more = f'<summary style="cursor:pointer">{len(rows) - MOST_OPEN} more rows</summary>'
        body += f"<details>{more}{drawn(rows[MOST_OPEN:])}</details>"
    return f'<div style="{FRAME}">{title}{body}</div>'


def _cell_html(text: Text, align: str, row_style: str) -> str:
    from rich.style import Style

    style = Style.parse(row_style) + (Style.parse(text.style) if isinstance(text.style, str) else text.style)
    return f'<td style="{align};white-space:pre;{style.get_html_style()}">{html.escape(text.plain)}</td>'
