"""What `patch_sweep` found."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from sonde.core import glob_matches, no_such_site
from sonde.display import WholePaths, as_text
from sonde.tools.reading.heatmap import POSITION, Drawn, Heat, by_last_axis

_SHADES = " ░▒▓█"


def restored_title(clean: Any, corrupt: Any) -> str:
    """The title of a picture of restored parts."""
    return f"restored: 0 is as in the corrupt run ({float(corrupt):.4g}), 1 as in the clean one ({float(clean):.4g})"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Sweep(Drawn):
    """What `patch_sweep` found.

    Attributes:
        scores: For every site, the metric with the clean value put there: an array with an axis for each axis of the
            sweep. In loops there is an axis per loop in front, except for named loops, whose rows are sites. Calls of a
            site after the first have their number in the name, as in `h[1]`.
        clean: The metric of the run on the clean input.
        corrupt: The metric of the run on the corrupt input.
        along: What the last axis of the scores is: positions, the indices along another axis, or directions.
        labels: The tokens at the positions, of a model with a tokenizer.
    """

    scores: dict[str, jax.Array]
    clean: jax.Array
    corrupt: jax.Array
    along: str = POSITION
    labels: tuple[str, ...] = ()

    @property
    def restored(self) -> dict[str, np.ndarray]:
        """The scores on a scale from 0, the corrupt run, to 1, the clean run.

        NaN if the metric is the same for both runs.
        """
        lost = (float(self.clean) - float(self.corrupt)) or float("nan")
        return {name: (np.asarray(s, np.float64) - float(self.corrupt)) / lost for name, s in self.scores.items()}

    def _heat(self) -> Heat:
        heat = by_last_axis(self.restored, restored_title(self.clean, self.corrupt), self.along)
        fits = self.along == POSITION and len(self.labels) == len(heat.columns)
        return dataclasses.replace(heat, columns=self.labels) if fits else heat

    def best(self, n: int = 5) -> list[tuple[str, tuple[int, ...], float]]:
        """The `n` points that restore most: name, index and restored part."""
        points = [(name, index, float(x)) for name, r in self.restored.items() for index, x in np.ndenumerate(r)]
        return sorted(points, key=lambda point: -point[2])[:n]

    def __repr__(self) -> str:
        return as_text(self)

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table("site", "most", "at", self.along)
        table.title = restored_title(self.clean, self.corrupt)
        for name, restored in self.restored.items():
            for index in np.ndindex(restored.shape[:-1]):
                row = restored[index].reshape(-1)
                best = int(np.argmax(np.nan_to_num(row, nan=-np.inf)))
                shades = [_SHADES[round(float(np.clip(np.nan_to_num(x), 0, 1)) * (len(_SHADES) - 1))] for x in row]
                at = ",".join(map(str, (*index, best))) if restored.ndim else ""
                table.add_row(Text(name), f"{row[best]:.3f}", at, Text("".join(shades)))
                name = ""
        return WholePaths(table)

    def stacked(self, pattern: str = "**") -> np.ndarray:
        """The restored parts at several sites of one shape, in one array with an axis for the sites in front.

        Args:
            pattern: Which sites: a glob over their names, such as `blocks/*/attn/heads`.

        Raises:
            NoSuchSiteError: It matches none.
            ValueError: The sites have scores of different shapes.
        """
        found = {name: x for name, x in self.restored.items() if glob_matches(pattern, name)}
        if not found:
            raise no_such_site(pattern, self.scores)
        shapes = {x.shape for x in found.values()}
        if len(shapes) > 1:
            raise ValueError(f"the scores at {list(found)} have different shapes: {sorted(shapes)}")
        return np.stack(list(found.values()))
