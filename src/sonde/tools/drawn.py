"""Results as pictures: a coloured table in a notebook, a matplotlib figure, a pandas DataFrame.

The table is HTML that needs no script, no server and no network. Its colours fit the notebook, light or dark; hover
over a cell to read its number.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde._array_text import indexed
from sonde.tools.words import words

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
        texts: What is written into the cells, row by row; nothing, if empty.
    """

    values: np.ndarray
    rows: Sequence[str]
    columns: Sequence[str]
    title: str
    column_title: str = ""
    texts: Sequence[Sequence[str]] = ()


class Drawn:
    """The base class of results that can be drawn. A subclass returns what to draw in `_heat`."""

    __slots__ = ()

    def _heat(self) -> Heat:
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return as_html(self._heat())

    def html(self, tokens: Any = None, names: Any = None) -> str:
        """The table as HTML, with tokens in place of positions.

        Args:
            tokens: Strings for the columns, or numbers of tokens.
            names: Turns a token into a string, as in `Lens.table`.
        """
        return as_html(self.heat(tokens, names))

    def heat(self, tokens: Any = None, names: Any = None) -> Heat:
        """What is drawn, with tokens in place of positions.

        Args:
            tokens: Strings for the columns, or numbers of tokens.
            names: Turns a token into a string, as in `Lens.table`.
        """
        return _with_tokens(self._heat(), tokens, names)

    def plot(self, ax: Any = None, *, tokens: Any = None, names: Any = None) -> Any:
        """A matplotlib figure (needs matplotlib).

        Args:
            ax: The axes to draw on; new ones, if None.
            tokens: Strings for the columns, or numbers of tokens.
            names: Turns a token into a string, as in `Lens.table`.

        Returns:
            The figure.
        """
        heat = self.heat(tokens, names)
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
    rows, values = [], []
    width = max((np.shape(x)[-1] if np.ndim(x) else 1 for x in found.values()), default=1)
    for name, x in found.items():
        x = np.asarray(x, np.float64)
        x = x.reshape(*x.shape[:-1], -1) if x.ndim else x.reshape(1)
        for index in np.ndindex(x.shape[:-1]):
            rows.append(indexed(name, index) if index else name)
            values.append(np.pad(x[index], (0, width - x.shape[-1]), constant_values=np.nan))
    return Heat(
        np.stack(values) if values else np.zeros((0, 0)), rows, list(map(str, range(width))), title, column_title
    )


def _with_tokens(heat: Heat, tokens: Any, names: Any) -> Heat:
    if tokens is None:
        return heat
    found = words(tokens, names)
    if len(found) != len(heat.columns):
        raise ValueError(f"there are {len(found)} tokens for {len(heat.columns)} columns")
    return dataclasses.replace(heat, columns=found)


def as_html(heat: Heat) -> str:
    """The table."""
    if heat.values.size > _MOST_CELLS:
        return f"<p>{html.escape(heat.title)}: {heat.values.size:,} cells, too many to draw here</p>"
    most = float(np.nanmax(np.abs(heat.values), initial=0.0)) or 1.0
    head = "".join(f'<th style="{_HEAD}">{html.escape(c)}</th>' for c in heat.columns)
    lines = []
    for i, (name, row) in enumerate(zip(heat.rows, heat.values)):
        cells = "".join(
            _cell(x, most, f"{name}, {heat.columns[j]}", heat.texts[i][j] if heat.texts else "")
            for j, x in enumerate(row)
        )
        lines.append(f'<tr><th style="{_ROW}">{html.escape(name)}</th>{cells}</tr>')
    under = f'<div style="opacity:.7">{html.escape(heat.column_title)}</div>' if heat.column_title else ""
    return (
        f'<div style="overflow-x:auto;font:12px/1.3 system-ui,sans-serif;color:inherit">'
        f'<div style="font-weight:600;margin-bottom:4px">{html.escape(heat.title)}</div>'
        f'<table style="border-collapse:collapse;background:transparent"><tr><th></th>{head}</tr>'
        f"{''.join(lines)}</table>{under}</div>"
    )


_HEAD = "padding:2px 4px;font-weight:400;opacity:.8;text-align:center;white-space:pre"
_ROW = "padding:0 8px 0 0;font-weight:400;text-align:right;white-space:nowrap;font-family:monospace"


def _cell(x: float, most: float, where: str, text: str) -> str:
    # Half transparent colours go with light and dark pages.
    if np.isnan(x):
        color = "transparent"
    else:
        share = min(1.0, abs(float(x)) / most)
        color = f"rgba(224,80,60,{share:.3f})" if x > 0 else f"rgba(60,120,220,{share:.3f})"
    said = html.escape(f"{where}: {text + ' ' if text else ''}{x:.4g}", quote=True)
    style = f"background:{color};min-width:16px;height:16px;padding:0 3px;text-align:center;white-space:pre"
    return f'<td title="{said}" style="{style}">{html.escape(text)}</td>'


def _optional(module: str, what: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{what} needs {package}, which is not installed: pip install 'sonde-jax[plots]'") from error
