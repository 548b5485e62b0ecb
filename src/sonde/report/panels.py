"""Panels that a caller adds to a page: pictures, lines and text, each with a caption."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.report.plain_json import plain
from sonde.tools.reading.heatmap import POSITION, Drawn
from sonde.tools.reading.token_labels import TokenNames

_MOST_CELLS = 40_000
_MOST_POINTS = 2_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """A part of the page.

    Attributes:
        title: Its heading.
        caption: A sentence that explains it.
        code: The Python that makes it, shown on request.
    """

    title: str
    caption: str = ""
    code: str = ""

    @property
    def data(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "kind": type(self).__name__.lower(),
            "title": self.title,
            "caption": self.caption,
            "code": self.code,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeatMap(Panel):
    """A matrix as colors: a patch sweep, an attention pattern.

    Attributes:
        values: Two axes: rows, columns.
        rows: A label for each row; numbers if empty.
        columns: A label for each column; numbers if empty.
        row_title: The title of the rows.
        column_title: The title of the columns.
        signed: Whether zero is the middle: blue below, red above. By default if there are negative numbers.
        low: The value of the darkest color; the smallest value by default.
        high: The value of the brightest color; the largest value by default.
        texts: Texts for the cells, row by row; the numbers, if empty.

    Example:
        >>> panel = HeatMap(title="Patching", values=[[0.1, 0.9], [0.0, 0.2]], rows=["layer 0", "layer 1"])
        >>> panel.data["values"]
        [[0.1, 0.9], [0, 0.2]]
    """

    values: Any
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    row_title: str = ""
    column_title: str = ""
    signed: bool | None = None
    low: float | None = None
    high: float | None = None
    texts: Sequence[Sequence[str]] = ()

    @classmethod
    def of(cls, result: Drawn, tokens: Sequence[str] = (), tokenizer: TokenNames | None = None) -> HeatMap:
        """A heat map of what a tool returned, such as a `Sweep` or a `Lens`.

        Args:
            result: A result that can draw itself.
            tokens: Labels of the positions; used if columns are positions, and there is one for each.
            tokenizer: Turns token ids into strings, as in `Lens.table`.
        """
        heat = result.heat(None, tokenizer)
        fits = heat.column_title == POSITION and len(tokens) == len(heat.columns)
        columns = list(tokens) if tokens and fits else list(heat.columns)
        return cls(
            title=heat.title,
            values=heat.values,
            rows=list(heat.rows),
            columns=columns,
            column_title=heat.column_title,
            texts=heat.texts,
        )

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.ndim != 2:
            raise ValueError(f"HeatMap {self.title!r} takes values with two axes, got shape {values.shape}")
        if values.size > _MOST_CELLS:
            raise ValueError(
                f"HeatMap {self.title!r} takes at most {_MOST_CELLS} cells, got {values.size} of shape {values.shape}: "
                "cut out a part or take means"
            )
        for labels, n, axis_name in ((self.rows, values.shape[0], "rows"), (self.columns, values.shape[1], "columns")):
            if labels and len(labels) != n:
                raise ValueError(f"HeatMap {self.title!r} has {n} {axis_name} but {len(labels)} labels for them")

    @property
    def data(self) -> dict[str, Any]:
        """Plain data."""
        values = np.asarray(self.values, np.float64)
        signed = self.signed if self.signed is not None else bool(np.nanmin(values, initial=0.0) < 0)
        return {
            **super().data,
            "values": plain(values),
            "rows": [str(x) for x in self.rows],
            "columns": [str(x) for x in self.columns],
            "row_title": self.row_title,
            "column_title": self.column_title,
            "signed": signed,
            "low": plain(self.low),
            "high": plain(self.high),
            "texts": [list(map(str, row)) for row in self.texts],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines(Panel):
    """Curves over a common axis: a training loss.

    Attributes:
        lines: The heights of each curve, by name. Long curves are thinned out.
        x: The positions of the points; 0, 1, 2, ... if None.
        x_title: The title of the horizontal axis.
        y_title: The title of the vertical axis.
        log: Whether the vertical axis is logarithmic.

    Example:
        >>> Lines(title="Loss", lines={"train": [2.0, 1.0, 0.5]}, x_title="step").data["lines"]
        [{'name': 'train', 'y': [2, 1, 0.5]}]
    """

    lines: Mapping[str, Any]
    x: Any = None
    x_title: str = ""
    y_title: str = ""
    log: bool = False

    def __post_init__(self) -> None:
        lengths = {name: len(np.asarray(y).reshape(-1)) for name, y in self.lines.items()}
        n = set(lengths.values()) | ({len(np.asarray(self.x))} if self.x is not None else set())
        if len(n) > 1:
            of_x = "" if self.x is None else f" and {len(np.asarray(self.x))} places"
            raise ValueError(f"Lines {self.title!r} takes curves of one length, got {lengths}{of_x}")

    @property
    def data(self) -> dict[str, Any]:
        """Plain data."""
        curves = {str(name): np.asarray(y, np.float64).reshape(-1) for name, y in self.lines.items()}
        length = max((len(y) for y in curves.values()), default=0)
        shown = np.unique(np.linspace(0, max(length - 1, 0), min(length, _MOST_POINTS)).astype(int))
        x = np.arange(length) if self.x is None else np.asarray(self.x)
        return {
            **super().data,
            "lines": [{"name": name, "y": plain(y[shown])} for name, y in curves.items()],
            "x": plain(x[shown]),
            "x_title": self.x_title,
            "y_title": self.y_title,
            "log": self.log,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Text(Panel):
    """Some paragraphs, separated by empty lines.

    Attributes:
        text: The text. It is not interpreted as markup.
    """

    text: str

    @property
    def data(self) -> dict[str, Any]:
        """Plain data."""
        return {**super().data, "text": self.text}
