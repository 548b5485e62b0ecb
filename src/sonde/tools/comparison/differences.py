"""How much two programs differ at one point."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from sonde._array_text import short_place
from sonde.display import InNotebook
from sonde.port.difference import Distance, Limit, beyond_each, beyond_norm, distance, epsilon
from sonde.port.layouts import arranged, only_by_shape
from sonde.tools.comparison.matching import By, Pair
from sonde.tools.comparison.runs import Point

_UNITS = 4  # how many units in the last place, or times what rounding did in a trial, are no difference


@dataclasses.dataclass(frozen=True, slots=True)
class Drift(InNotebook):
    """How much two programs differ at one site, call and iteration.

    Attributes:
        path: The path of the site.
        part: Which array of the pytree that was sown; `""` if it was an array.
        call: Which of the calls under that path, from 0.
        iteration: The number of the iteration of each loop around it, outermost first.
        gradient: Whether these are gradients.
        size: How many elements there are.
        beyond: How many of them differ by more than the tolerance.
        max_abs: The largest difference of two finite elements.
        max_rel: That difference, relative to the largest finite element of the second program.
        rel_norm: The norm of the difference of the finite elements, relative to that of the second program's; infinite
            if one program has a finite element where the other has none.
        limit: How large `rel_norm` may be; None if elements were compared one by one, with a given `rtol`.
        note: Why the elements cannot be compared, such as different shapes; `""` if they can.
        source: The line of the first program.
        result: Whether this is what the function returned, or the gradient of that, and not a value at a site.
        second: What the value is called in the second program, if not by the same path.
        layout: How the second program's array was rearranged, such as `"transposed (0, 2, 1)"`; `""` if it was not.
        by: How the two values were matched: `"given"`, `"path"`, `"name"`, `"value"` or `"order"`.
        differs: Whether the programs differ by more than the tolerance.
    """

    path: str
    part: str
    call: int
    iteration: tuple[int, ...]
    gradient: bool
    size: int
    beyond: int
    max_abs: float
    max_rel: float
    rel_norm: float
    limit: float | None
    note: str
    source: str
    result: bool = False
    second: str = ""
    layout: str = ""
    by: By = "path"
    differs: bool = False

    @property
    def place(self) -> str:
        """The path, with part, call and iteration."""
        if self.result:
            return f"{self.path}{self.part}"
        part = self.part and "." + self.part
        iteration = f", iteration {', '.join(map(str, self.iteration))}" if self.iteration else ""
        return f"{self.path}{part}{' (gradient)' * self.gradient}, call {self.call}{iteration}"

    def __str__(self) -> str:
        other = f" (= {self.second})" if self.second else ""
        if self.note:
            return f"{self.place}{other}: {self.note}"
        return (
            f"{self.place}{other}: {self.beyond} of {self.size} elements differ, by up to {self.max_abs:.3g} "
            f"({self.max_rel:.3g} of the largest; {self.rel_norm:.3g} of the norm)"
        )

    def __rich__(self) -> Any:
        from rich.text import Text

        line = short_place(self.source)
        return Text(f"{self} ({line})" if line else str(self), style="red" if self.differs else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Tolerance:
    """When two arrays differ. Exactly one of the ways of `compare` applies.

    Attributes:
        rtol: Elements are compared one by one, with this relative tolerance; None: by norm.
        atol: The absolute tolerance of elements.
        norm: The limit of the norm of a difference; None: from the arithmetic.
        fallback: How large the norm of a difference may be where the noise cannot be measured.
    """

    rtol: float | None
    atol: float
    norm: float | None
    fallback: float | None = None

    def limit(self, a: np.ndarray, b: np.ndarray, noise: list[Distance]) -> Limit:
        """The limit of two arrays, given how far rounding alone moved them."""
        if self.norm is not None:
            return Limit(self.norm, largest=np.inf)
        limit = Limit(max(_UNITS * epsilon(a, b), self.fallback or 0.0 if epsilon(a, b) else 0.0))
        for one in noise:
            limit = limit.or_more(one, _UNITS)
        return limit


def judge(pair: Pair, tolerance: Tolerance, noise: list[Distance], second: str = "", *, result: bool = False) -> Drift:
    """Whether two points that correspond differ."""
    a, b = pair.first, pair.second
    made = _Made(a, second, pair.by, result)
    if a.taken != b.taken:
        return made.noted(f"the branch with it ran only in the {'first' if a.taken else 'second'} program")
    times = "" if a.times == b.times else f"{_times(a)} of the loop against {_times(b)}"
    limit = tolerance.limit(a.array, b.array, noise)
    agree = functools.partial(_agrees, a.array, tolerance=tolerance, limit=limit)
    array, layout = b.array, ""
    if a.array.shape != b.array.shape and not result:
        same = arranged(b.array, a.array, agree) or only_by_shape(b.array, a.array.shape)
        if same is None:
            return made.noted(f"shape {list(a.array.shape)} against {list(b.array.shape)}")
        array, layout = same[0], str(same[1])
    elif a.array.shape != b.array.shape:
        same = arranged(b.array, a.array, agree)
        more = f"; the same numbers, {same[1]}" if same and str(same[1]) else ""
        return made.noted(f"shape {list(a.array.shape)} against {list(b.array.shape)}{more}")
    return made.measured(array, layout, tolerance, limit, times)


@dataclasses.dataclass(frozen=True, slots=True)
class _Made:
    """Makes the drift of a point."""

    point: Point
    second: str
    by: By
    result: bool

    def noted(self, note: str) -> Drift:
        p = self.point
        return Drift(
            p.path, p.part, p.call, () if p.times is None else p.iteration, p.gradient, 0, 0, np.nan, np.nan, np.nan,
            None, note, p.source, self.result, self.second, "", self.by, True,
        )  # fmt: skip

    def measured(self, array: np.ndarray, layout: str, tolerance: Tolerance, limit: Limit, note: str) -> Drift:
        p = self.point
        apart = distance(p.array, array)
        if tolerance.rtol is not None:
            beyond, most = beyond_each(p.array, array, tolerance.rtol, tolerance.atol), None
            differs = beyond > 0
        else:
            differs, most = not apart.within(limit), limit.norm(apart.size)
            beyond = max(beyond_norm(p.array, array, limit, apart.size), 1) if differs else 0
        return Drift(
            p.path, p.part, p.call, p.iteration, p.gradient, p.array.size, beyond, apart.max_abs, apart.max_rel,
            apart.norm, most, note, p.source, self.result, self.second, layout, self.by, differs or bool(note),
        )  # fmt: skip


def _agrees(a: np.ndarray, b: np.ndarray, tolerance: Tolerance, limit: Limit) -> bool:
    if tolerance.rtol is not None:
        return beyond_each(a, b, tolerance.rtol, tolerance.atol) == 0
    return distance(a, b).within(limit)


def _times(point: Point) -> str:
    return "no iterations" if point.times is None else f"{point.times} iterations"
