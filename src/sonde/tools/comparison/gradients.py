"""Pairs the gradients of two programs with respect to what goes into both."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from sonde._array_text import counted
from sonde.port.parameters import match_parameters
from sonde.port.prints import print_of
from sonde.tools.comparison.matching import By, Pair
from sonde.tools.comparison.runs import Point
from sonde.tools.comparison.sides import Side, SideGradients, first_line


@dataclasses.dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of the results of two programs, with respect to what goes into both.

    Attributes:
        pairs: What corresponds.
        unchecked: What could not be compared, and why.
    """

    pairs: list[Pair]
    unchecked: list[str]
    _sides: tuple[SideGradients, SideGradients]
    _made: dict[int, tuple[int, _Pick]] = dataclasses.field(default_factory=dict)  # by identity of the point
    _draws: dict[tuple[int, int], Sequence[np.ndarray]] = dataclasses.field(default_factory=dict)
    _with_padding: dict[int, tuple[Sequence[np.ndarray], str]] = dataclasses.field(default_factory=dict)

    def add(self, label: str, by: By, *picks: _Pick) -> None:
        """Adds a pair, which each side makes of its gradients."""
        points = []
        for side, pick in enumerate(picks):
            points.append(Point(f"the gradient of {label}", "", 0, (), True, pick(self._sides[side].arrays), ""))
            self._made[id(points[-1])] = side, pick
        self.pairs.append(Pair(points[0], points[1], by))

    def moved(self, point: Point, draw: int) -> np.ndarray:
        """The gradient as it is where the arithmetic rounds differently."""
        side, pick = self._made[id(point)]
        if (side, draw) not in self._draws:
            self._draws[side, draw] = self._sides[side].rounded_otherwise(draw)
        return pick(self._draws[side, draw])

    def with_padding(self, pair: Pair) -> tuple[Pair, str] | None:
        """A pair with gradients for padding where PyTorch leaves them at zero, and which settings do; None if none."""
        points, settings = [], ""
        for point in (pair.first, pair.second):
            side, pick = self._made[id(point)]
            make = self._sides[side].with_padding
            if make is not None:
                if side not in self._with_padding:
                    self._with_padding[side] = make()
                arrays, settings = self._with_padding[side]
                point = dataclasses.replace(point, array=pick(arrays))
            points.append(point)
        return (Pair(points[0], points[1], pair.by), settings) if settings else None


_Pick = Callable[[Sequence[np.ndarray]], np.ndarray]


def _sum_of(numbers: Sequence[int], then: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> _Pick:
    """The sum of some gradients, as a function of all of them."""
    return lambda arrays: then(functools.reduce(np.add, [arrays[number] for number in numbers]))


def gradient_pairs(first: Side, second: Side) -> Gradients | str:
    """The gradients of two programs, matched by argument and, for weights, by value; or why there are none."""
    sides = []
    for side, which in ((first, "first"), (second, "second")):
        try:
            made = side.gradients()
        except Exception as error:
            made = first_line(error)
        if isinstance(made, str):
            return made and f"gradients: the {which} program {made}"
        sides.append(made)
    gradients = Gradients([], [], (sides[0], sides[1]))
    for side, which in zip(sides, ("first", "second")):
        if side.n_lacking:
            text = (
                f"gradients of {counted(side.n_lacking, 'array')} that jitted functions in loops or branches refer to"
            )
            gradients.unchecked.append(f"{text}, in the {which} program")
    # Arguments correspond by place.
    named = {name: k for k, name in enumerate(sides[1].names) if name}
    for i, name in enumerate(sides[0].names):
        if name in named and np.array_equal(sides[0].inputs[i], sides[1].inputs[named[name]]):
            gradients.add(f"argument {name}", "path", _sum_of([i]), _sum_of([named[name]]))
    weights = [[i for i, name in enumerate(side.names) if not name] for side in sides]
    arrays = [[side.inputs[i] for i in numbers] for side, numbers in zip(sides, weights)]
    alike = [_Alike(side) for side in arrays]
    matches = match_parameters(arrays[0], arrays[1], [side.prints for side in alike])
    added: set[int] = set()
    for m in matches:
        copies = alike[0].copies(m.first), alike[1].copies(m.second)
        if m.first in added:
            continue
        one = m.part is None and len(copies[0]) != len(copies[1])  # tied in one program, and two arrays in the other
        chosen = [
            [numbers[k] for k in (own if one else (number,))]
            for numbers, own, number in zip(weights, copies, (m.first, m.second))
        ]
        added |= set(copies[0]) if one else set()
        label = f"weight {m.first} {arrays[0][m.first].dtype}{list(np.shape(arrays[0][m.first]))}"
        if not one and any(side.has_other_layouts(k) for side, k in zip(alike, (m.first, m.second))):
            gradients.unchecked.append(f"the gradient of {label}: the programs have it in several layouts")
            continue
        picks = [_sum_of(n, functools.partial(m.of, is_first=i == 0)) for i, n in enumerate(chosen)]
        gradients.add(label if m.part is None or not m.of_first else m.part.code(label), "value", *picks)
    matched = {m.first for m in matches}, {m.second for m in matches}
    left = [[x for i, x in enumerate(side) if i not in known and x.size > 1] for side, known in zip(arrays, matched)]
    if left[0] and left[1]:
        counts = [f"{len(own)} of the {which} program" for own, which in zip(left, ("first", "second"))]
        gradients.unchecked.append(f"gradients of weights that have no counterpart: {' and '.join(counts)}")
    return gradients


class _Alike:
    """Arrays of a program that have the same numbers."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self.arrays = arrays
        self.prints = [print_of(x) for x in arrays]

    def copies(self, number: int) -> tuple[int, ...]:
        """The arrays with the same numbers in the same layout as one of them, itself included."""
        own = self.arrays[number]
        others = self._with_print_of(number)
        same = [i for i in others if self.arrays[i].shape == own.shape and np.array_equal(self.arrays[i], own)]
        return tuple(sorted([number, *same]))

    def has_other_layouts(self, number: int) -> bool:
        """Whether another of the arrays has the same numbers in another layout."""
        own = self.arrays[number]
        return self.prints[number].telling and any(
            not np.array_equal(self.arrays[i], own)
            and np.array_equal(np.sort(self.arrays[i].ravel()), np.sort(own.ravel()))
            for i in self._with_print_of(number)
        )

    def _with_print_of(self, number: int) -> list[int]:
        own = self.prints[number]
        return [i for i, other in enumerate(self.prints) if i != number and other.apart(own) <= 1e-6]
