"""Pictures of values: attention maps, feature maps and matrices, as levels of brightness."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sonde.report.slices import MISSING, Kind
from sonde.tools.execution.record_values import Seen

_MATRICES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """A small picture of a value at one call and iteration.

    Attributes:
        path: The path of the site.
        part: Which array of the pytree that was sown.
        kind: What is shown: `"attention"` (examples, heads, queries, keys), `"features"` (examples, rows, columns,
            channels) or `"matrix"` (examples, rows, columns).
        call: Which of the calls under that path.
        iteration: The number of the iteration of each loop around it.
        levels: 0 to 254 from `low` to `high`; 255 is not finite.
        low: The smallest finite value.
        high: The largest finite value.
        shape: The shape of the array that the picture was cut from.
    """

    path: str
    part: str
    kind: Kind
    call: int
    iteration: tuple[int, ...]
    levels: np.ndarray
    low: float
    high: float
    shape: tuple[int, ...]

    @property
    def values(self) -> np.ndarray:
        """The numbers that the levels represent; NaN for those that are not finite."""
        if not np.isfinite(self.low):
            return np.full(self.levels.shape, np.nan)
        share = self.levels.astype(np.float64) / (MISSING - 1)
        return np.where(self.levels == MISSING, np.nan, self.low + share * (self.high - self.low))


def pictures_of(cuts: Mapping[str, Any], seen: Seen, index: int) -> list[Picture]:
    """The pictures of one array of a value: for a loop, of the first and the last iteration; for attention, of all."""
    if not cuts:
        return []
    drawn = []
    for kind, cut in cuts.items():
        steps = list(seen.steps(np.shape(cut["low"])[: seen.loops]))
        if kind != "attention":
            steps = _ends(steps)
        for at, iteration, _ in steps:
            at = at + (0,) * (np.ndim(cut["low"]) - len(at))  # with several devices, the first
            drawn.append(
                Picture(
                    seen.path,
                    seen.parts[index],
                    kind,  # pyright: ignore[reportArgumentType]
                    seen.call,
                    iteration,
                    np.asarray(cut["levels"])[at],
                    float(cut["low"][at]),
                    float(cut["high"][at]),
                    tuple(seen.types[index].shape),
                )
            )
    return drawn


def _ends(pictures: list[Any]) -> list[Any]:
    return [*pictures[:1], *pictures[1:][-1:]]


def decided(pictures: Sequence[Picture], *, shares: bool) -> list[Picture]:
    """The pictures of an array to show: all of attention, otherwise the first and the last.

    Args:
        pictures: All that were taken.
        shares: Whether the rows add up to one. Only then is an array with the shape of attention taken as attention.
    """
    kinds = {picture.kind for picture in pictures}
    if "attention" in kinds and (shares or "features" not in kinds):
        pictures = [picture for picture in pictures if picture.kind == "attention"]
    else:
        pictures = [picture for picture in pictures if picture.kind != "attention"]
    if not shares:
        pictures = [_as_matrix(picture) if picture.kind == "attention" else picture for picture in pictures]
    return (
        list(pictures) if shares and all(picture.kind == "attention" for picture in pictures) else _ends(list(pictures))
    )


def _as_matrix(picture: Picture) -> Picture:
    levels = picture.levels
    return dataclasses.replace(picture, kind="matrix", levels=levels.reshape(-1, *levels.shape[-2:])[:_MATRICES])
