"""The data of each site, read on the host: statistics and traits step by step, and pictures.

A step is one call and, in loops, one iteration. `Examined` is one array at one path with all its steps; the findings
and the page are made from nothing else.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sonde.core import Record, Records
from sonde.report.pictures import Picture, decided, pictures_of
from sonde.report.traits import added_up
from sonde.tools.execution.record_values import Seen, each_seen
from sonde.tools.numerics.array_statistics import Statistics
from sonde.tools.numerics.summarize import Row, rows_at


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """A value or gradient at one call and iteration.

    Attributes:
        row: Where it is, and its statistics.
        traits: Further counts; empty unless it is of floating point.
    """

    row: Row
    traits: Mapping[str, np.ndarray]

    @property
    def statistics(self) -> Statistics:
        """The statistics."""
        return self.row.statistics

    @property
    def when(self) -> str:
        """Which call and iteration, in words; empty for the only one of a site that runs once."""
        call = f"call {self.row.call}" if self.row.call else ""
        loop = f"iteration {', '.join(map(str, self.row.iteration))}" if self.row.iteration else ""
        return ", ".join(filter(None, (call, loop)))

    @property
    def rms(self) -> float:
        """The root of the mean square of the finite elements; of masked scores, of those that are not masked."""
        s = self.statistics
        if masked(s):
            return _rms_without_mask(s)
        finite = s.size - (s.nonfinite or 0)
        return math.nan if not finite or s.norm is None else s.norm / math.sqrt(finite)

    def trait(self, name: str) -> float:
        """A count, 0 if there is none."""
        return float(self.traits.get(name, 0))


@dataclasses.dataclass(frozen=True, slots=True)
class Examined:
    """One array at one site.

    Attributes:
        path: The path of the site.
        part: Which array of the pytree that was sown; `""` if it was an array.
        shape: Its shape in one iteration, mapped axes included.
        dtype: Its dtype.
        source: The line of the user's code.
        values: The values, by call and iteration.
        gradients: The gradients, by call and iteration; empty if there are none.
        only_looked_at: Whether a module system marked it only for reading: the program does not use the marked value.
        unreached: Whether a backward pass ran but no gradient reached this array: nothing differentiable uses it.
        pictures: Small pictures of the value.
    """

    path: str
    part: str
    shape: tuple[int, ...]
    dtype: str
    source: str
    values: tuple[Step, ...]
    gradients: tuple[Step, ...]
    only_looked_at: bool
    unreached: bool
    pictures: tuple[Picture, ...]

    @property
    def name(self) -> str:
        """The path, with the part."""
        return f"{self.path}.{self.part}" if self.part else self.path

    @property
    def is_float(self) -> bool:
        """Whether the elements are of floating point, complex ones included."""
        return self.dtype.startswith(("float", "bfloat", "complex"))


def is_shares(steps: Sequence[Step]) -> bool:
    """Whether every row has numbers from 0 to 1 that add up to 1: attention weights, probabilities, one-hot codes."""
    rows = [(step.trait("rows_of_shares"), step.trait("rows")) for step in steps]
    return bool(rows) and all(0 < n == of for n, of in rows)


_OUTER = 0  # the bin of everything below -2^20
_GAP = 5


def masked(s: Statistics) -> bool:
    """Whether some elements are huge negative numbers far from all others, as masks put them into attention scores."""
    if s.histogram is None or not s.histogram[_OUTER]:
        return False
    return bool(s.histogram[1:].any()) and not s.histogram[_OUTER + 1 : _OUTER + 1 + _GAP].any()


def _rms_without_mask(s: Statistics) -> float:
    assert s.histogram is not None
    # The middle of a bin between two powers of two; the outermost ones have one edge only.
    half = len(s.histogram) // 2
    sizes = np.abs(np.arange(len(s.histogram)) - half)
    middle = np.where(sizes == 0, 0.0, 1.5 * 2.0 ** (sizes - 1.0 - 20))
    counts = s.histogram.astype(float)
    counts[_OUTER] = 0
    return float(np.sqrt((counts * middle**2).sum() / counts.sum()))


def examined(records: Records) -> tuple[list[Examined], list[Row]]:
    """The data of each site in program order, and all rows in the order of `tools.Summary`.

    Args:
        records: What `watching.watch` returned, with NumPy arrays.
    """
    sites: list[Examined] = []
    rows: list[Row] = []
    for path, all_seen in itertools.groupby(each_seen(records), key=lambda seen: seen.path):
        of_part: dict[str, _Gathered] = {}
        reached = list(_reached(records[path]))
        for seen in all_seen:
            stats, cuts = (seen.value, []) if seen.gradient else seen.value
            # Sites without numbers, such as random keys and branches that were not taken, are listed too.
            for i, part in enumerate(seen.parts):
                of_part.setdefault(part, _Gathered(seen, i))
            if not seen.types:
                of_part.setdefault("", _Gathered(seen, -1))
            for i, steps in _steps(seen, *stats):
                gathered = of_part[seen.parts[i]]
                rows += [step.row for step in steps]
                if not seen.gradient:
                    gathered.values += steps
                    gathered.pictures += pictures_of(cuts[i], seen, i)
                elif i in reached[seen.call]:
                    gathered.gradients += steps
                else:
                    gathered.unreached = True
        sites += [gathered.done() for gathered in of_part.values()]
    return sites, rows


@dataclasses.dataclass(slots=True)
class _Gathered:
    first: Seen
    index: int
    values: list[Step] = dataclasses.field(default_factory=list)
    gradients: list[Step] = dataclasses.field(default_factory=list)
    unreached: bool = False
    pictures: list[Picture] = dataclasses.field(default_factory=list)

    def done(self) -> Examined:
        kind = self.first.types[self.index] if self.first.types else None
        return Examined(
            self.first.path,
            self.first.parts[self.index] if kind is not None else "",
            () if kind is None else tuple(kind.shape),
            "" if kind is None else str(kind.dtype),
            self.first.site.source,
            tuple(self.values),
            tuple(self.gradients),
            self.first.site.tag is not None,
            self.unreached and not self.gradients,
            tuple(decided(self.pictures, shares=is_shares(self.values))),
        )


def _reached(record: Record) -> Iterator[tuple[int, ...]]:
    """Per call, which of the arrays got a gradient."""
    for call, _ in record.calls():
        spec = call.value if not call.value.view.is_value else call.grads[0][1] if call.grads else None
        yield () if spec is None else spec.view.gradient_of or ()


def _steps(seen: Seen, moments: Sequence[Any], traits: Sequence[Any]) -> Iterator[tuple[int, list[Step]]]:
    by_part: dict[str, list[Row]] = {}
    for row in rows_at(dataclasses.replace(seen, value=moments)):
        by_part.setdefault(row.part, []).append(row)
    for i, part in enumerate(seen.parts):
        if part in by_part:
            places = seen.steps(np.shape(moments[i]["counts"])[: seen.loops])
            summed = [added_up({k: np.asarray(x)[at] for k, x in traits[i].items()}, here) for at, _, here in places]
            yield i, [Step(row, t) for row, t in zip(by_part[part], summed)]
