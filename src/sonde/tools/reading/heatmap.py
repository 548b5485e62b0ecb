"""Results as pictures: a colored table in a notebook, a matplotlib figure, a pandas DataFrame.

The table is HTML that needs no script, no server and no network. Its colors fit the notebook, light or dark; hover
over a cell to read its number.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde._array_text import indexed
from sonde._renames import accepts_old_keywords
from sonde.tools.reading.token_labels import Labels, TokenNames, visible, words

_MOST_CELLS = 20_000
POSITION = "position"
"""The title of columns that are positions, which tokens can name."""


@dataclasses.dataclass(frozen=True)
class Heat:
    """A matrix to be drawn.

    Attributes:
        values: Rows by columns.
        rows: A label for each row.
        columns: A label for each column.
        title: What the picture shows.
        column_title: What the columns are.
        texts: What is written into the cells, row by row; numbers, if empty and there are few columns.
        absent: Which cells have no number; all others that are NaN are NaN.
        by_column: Whether each column has a scale of its own, because they are of different kinds.
        alarming: The columns in which every number but zero says that something is wrong.
        groups: Columns that belong together, as a heading and how many they are; the heading is part of their labels.
    """

    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    title: str
    column_title: str = ""
    texts: Sequence[Sequence[str]] = ()
    absent: np.ndarray | None = None
    by_column: bool = False
    alarming: Sequence[str] = ()
    groups: Sequence[tuple[str, int]] = ()


class Drawn:
    """The base class of results that can be drawn. A subclass returns what to draw in `_heat`."""

    __slots__ = ()

    def _heat(self) -> Heat:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return as_html(self.heat())

    @accepts_old_keywords("html, heat and plot of what tools return")
    def html(self, tokens: Labels | None = None, tokenizer: TokenNames | None = None) -> str:
        """The table as HTML, with tokens in place of positions.

        Args:
            tokens: Strings for the columns, or numbers of tokens.
            tokenizer: Turns a token into a string, as in `Lens.table`.
        """
        return as_html(self.heat(tokens, tokenizer))

    @accepts_old_keywords("html, heat and plot of what tools return")
    def heat(self, tokens: Labels | None = None, tokenizer: TokenNames | None = None) -> Heat:
        """What is drawn, with tokens in place of positions.

        Args:
            tokens: Strings for the columns, or numbers of tokens.
            tokenizer: Turns a token into a string, as in `Lens.table`.
        """
        return with_tokens(self._heat(), tokens, tokenizer)

    @accepts_old_keywords("html, heat and plot of what tools return")
    def plot(self, ax: Any = None, *, tokens: Labels | None = None, tokenizer: TokenNames | None = None) -> Any:
        """A matplotlib figure (needs matplotlib).

        Args:
            ax: The axes to draw on; new ones, if None.
            tokens: Strings for the columns, or numbers of tokens.
            tokenizer: Turns a token into a string, as in `Lens.table`.

        Returns:
            The figure.
        """
        heat = self.heat(tokens, tokenizer)
        if ax is None:
            pyplot = _optional("matplotlib.pyplot", "plot()", "matplotlib")
            rows, columns = heat.values.shape
            size = (min(16, 2.5 + 0.35 * columns), min(20, 1.2 + 0.25 * rows))
            _, ax = pyplot.subplots(figsize=size, layout="constrained")
        signed = bool(np.nanmin(heat.values, initial=0.0) < 0)
        most = float(np.nanmax(np.abs(heat.values), initial=0.0)) or 1.0
        limits: dict[str, Any] = {"vmin": -most, "vmax": most, "cmap": "RdBu_r"} if signed else {"cmap": "viridis"}
        image = ax.imshow(heat.values, aspect="auto", **limits)
        ax.set_title(heat.title)
        ax.set_xlabel(heat.column_title)
        ax.set_yticks(range(len(heat.rows)), heat.rows, fontsize=7)
        ax.set_xticks(range(len(heat.columns)), heat.columns, fontsize=7, rotation=90)
        ax.figure.colorbar(image, ax=ax)
        return ax.figure

    def to_dataframe(self) -> Any:
        """A pandas DataFrame with the rows and columns of the drawing (needs pandas)."""
        pandas = _optional("pandas", "to_dataframe()", "pandas")
        heat = self._heat()
        return pandas.DataFrame(heat.values, index=list(heat.rows), columns=list(heat.columns))


def by_last_axis(found: dict[str, np.ndarray], title: str, column_title: str) -> Heat:
    """Arrays by name as one matrix: a row for each index of all axes but the last."""
    rows, values, absent = [], [], []
    width = max((np.shape(x)[-1] if np.ndim(x) else 1 for x in found.values()), default=1)
    for name, x in found.items():
        x = np.asarray(x, np.float64)
        x = x.reshape(*x.shape[:-1], -1) if x.ndim else x.reshape(1)
        for index in np.ndindex(x.shape[:-1]):
            rows.append(indexed(name, index) if index else name)
            values.append(np.pad(x[index], (0, width - x.shape[-1]), constant_values=np.nan))
            absent.append(np.arange(width) >= x.shape[-1])
    columns = list(map(str, range(width)))
    none = np.zeros((0, 0))
    matrix, missing = (np.stack(values), np.stack(absent)) if values else (none, none)
    return Heat(matrix, rows, columns, title, column_title, absent=missing)


def with_tokens(heat: Heat, tokens: Labels | None, tokenizer: TokenNames | None) -> Heat:
    """The same, with tokens in place of the labels of columns."""
    if tokens is None:
        return heat
    found = words(tokens, tokenizer)
    if len(found) != len(heat.columns):
        raise ValueError(f"there are {len(found)} tokens for {len(heat.columns)} columns")
    return dataclasses.replace(heat, columns=found)


def as_html(heat: Heat) -> str:
    """The table."""
    if heat.values.size > _MOST_CELLS:
        return f"<p>{html.escape(heat.title)}: {heat.values.size:,} cells, too many to draw here</p>"
    absent = np.zeros(heat.values.shape, bool) if heat.absent is None else heat.absent
    sizes = np.abs(np.where(np.isfinite(heat.values), heat.values, 0.0))
    most = (
        np.max(sizes, axis=0, initial=0.0) if heat.by_column else np.full(sizes.shape[1:], np.max(sizes, initial=0.0))
    )
    most = np.where(most > 0, most, 1.0)
    writes = len(heat.columns) <= _MOST_NUMBERS
    # Numbers on one scale are easier to compare with one number of decimals.
    digits = "{:z.2f}" if not heat.by_column and 0.1 <= np.max(sizes, initial=0.0) < 100 else "{:.3g}"
    starts = set(itertools.accumulate(count for _, count in heat.groups))
    lines, n_broken = [], 0
    for i, (name, row) in enumerate(zip(heat.rows, heat.values)):
        cells, is_broken = [], False
        for j, x in enumerate(row):
            column = heat.columns[j]
            text = heat.texts[i][j] if heat.texts else digits.format(x) if writes and not absent[i, j] else ""
            wrong = not absent[i, j] and (not np.isfinite(x) or (column in heat.alarming and x != 0))
            gap = _GAP if j in starts else ""
            cells.append(_cell(x, most[j], f"{name}, {column}", text, bool(absent[i, j]), wrong, gap))
            is_broken |= bool(wrong)
        n_broken += is_broken
        style = f"{_ROW};{_LOUD}" if is_broken else _ROW
        lines.append(f'<tr><th style="{style}">{html.escape(name)}</th>{"".join(cells)}</tr>')
    under = f'<div style="opacity:.7">{html.escape(heat.column_title)}</div>' if heat.column_title else ""
    warning = f' <span style="{_LOUD};padding:0 6px">not finite in {n_broken}</span>' if n_broken else ""
    above, labels = _headings(heat)
    # Labels of many columns stand upright: all cells have one width, whatever the labels are.
    upright = "" if writes or max(map(len, labels), default=0) <= _SHORT else ";writing-mode:vertical-rl"
    head = "".join(
        f'<th style="{_HEAD}{upright}{_GAP if j in starts else ""}">{html.escape(visible(c))}</th>'
        for j, c in enumerate(labels)
    )

    def table(some: Sequence[str]) -> str:
        style = "border-collapse:collapse;background:transparent;font:inherit"
        return f'<table style="{style}">{above}<tr><th></th>{head}</tr>{"".join(some)}</table>'

    body = table(lines[:_MOST_ROWS])
    if len(lines) > _MOST_ROWS:
        more = f'<summary style="cursor:pointer">{len(lines) - _MOST_ROWS} more rows</summary>'
        body += f"<details>{more}{table(lines[_MOST_ROWS:])}</details>"
    return (
        f'<div style="overflow-x:auto;font:12px/1.3 system-ui,sans-serif;color:inherit">'
        f'<div style="font-weight:600;margin-bottom:4px;white-space:pre-wrap">{html.escape(heat.title)}{warning}</div>'
        f"{body}{under}</div>"
    )


def _headings(heat: Heat) -> tuple[str, list[str]]:
    """A row with the headings of groups of columns, and the labels of the columns below it."""
    if not heat.groups:
        return "", list(heat.columns)
    columns = iter(heat.columns)
    labels = [next(columns).removeprefix(name).strip() for name, count in heat.groups for _ in range(count)]
    above = "".join(
        f'<th colspan="{count}" style="{_HEAD};font-weight:600{_GAP if i else ""}">{html.escape(name)}</th>'
        for i, (name, count) in enumerate(heat.groups)
    )
    return f"<tr><th></th>{above}</tr>", labels


_SHORT = 3  # characters that fit above a cell
_GAP = ";border-left:10px solid transparent;background-clip:padding-box"
_MOST_NUMBERS = 16  # columns; with more, numbers are shown where the mouse is
_MOST_ROWS = 60
_LOUD = "background:#c8102e;color:#fff;font-weight:700"
_HEAD = "padding:2px 4px;font-weight:400;opacity:.8;text-align:center;white-space:pre"
_ROW = "padding:0 8px 0 0;font-weight:400;text-align:right;white-space:nowrap;font-family:monospace;user-select:all"


def _cell(x: float, most: float, where: str, text: str, absent: bool, wrong: bool, gap: str) -> str:
    # Half transparent colors go with light and dark pages.
    if wrong:
        look = _LOUD
    elif absent:
        look = "background:transparent"
    else:
        share = min(1.0, abs(float(x)) / most) * 0.75
        look = f"background:rgba(224,80,60,{share:.3f})" if x > 0 else f"background:rgba(60,120,220,{share:.3f})"
    text = text or (f"{x:.3g}" if wrong else "")
    said = html.escape(f"{where}: {text + ' ' if text else ''}{x:.4g}", quote=True)
    style = f"{look};min-width:16px;height:16px;padding:0 3px;text-align:center;white-space:pre{gap}"
    return f'<td title="{said}" style="{style}">{html.escape(text)}</td>'


def _optional(module: str, what: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {package}, which is not installed: pip install 'sonde-jax[plots]'") from error
