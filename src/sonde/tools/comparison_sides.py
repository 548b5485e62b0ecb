"""What can be compared: a program, or values that one computed before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from sonde.core.asking import InsideRequest
from sonde.core.capture import check_callable
from sonde.core.path import Pattern
from sonde.port.gradients import differentiable, with_gradient
from sonde.port.parameters import match_parameters
from sonde.port.program import Program, trace
from sonde.port.rounding import rounded_otherwise
from sonde.tools.compared_runs import Point, Run, run_rounded_otherwise, run_side
from sonde.tools.matching import Pair
from sonde.tools.reading import on_host


class Side(Protocol):
    """One side of a comparison, with the arguments of the call."""

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Side:
        """The same with arguments."""
        ...

    def run(self) -> Run:
        """What it computes."""
        ...

    def run_with_gradients(self) -> Run:
        """The same with gradients at the sites."""
        ...

    def rounded_otherwise(self, draws: int) -> tuple[list[Run], str]:
        """What it computes if the arithmetic rounds differently, several times; or why that is not known."""
        ...

    def traced(self) -> Program | str:
        """The traced program, or why there is none."""
        ...


@dataclasses.dataclass(frozen=True)
class ProgramSide:
    """A JAX function."""

    f: Callable
    patterns: tuple[Pattern, ...]
    grads: bool
    inside: InsideRequest | None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ProgramSide:
        """The same with arguments."""
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def run(self) -> Run:
        """What it computes."""
        return run_side(self.f, self.patterns, self.grads, self.inside, self.args, self.kwargs)

    def run_with_gradients(self) -> Run:
        """The same with gradients at the sites."""

        def differentiated() -> Any:
            program = with_gradient(trace(self.f, self.args, self.kwargs))
            return program(*program.values)

        return run_side(differentiated, self.patterns, True, self.inside, (), {})

    def rounded_otherwise(self, draws: int) -> tuple[list[Run], str]:
        """What it computes if the arithmetic rounds differently."""
        request = self.f, self.patterns, self.grads, self.inside, self.args, self.kwargs
        try:
            return run_rounded_otherwise(*request, draws), ""
        except Exception as error:  # it branches on values, has state, or an operation without a rule
            return [], _first_line(error)

    def traced(self) -> Program | str:
        """The traced program, or why there is none."""
        try:
            return trace(self.f, self.args, self.kwargs)
        except Exception as error:
            return _first_line(error)


def side_of(thing: Any, patterns: Sequence[Pattern], grads: bool, inside: InsideRequest | None) -> Side:
    """The side that an argument of `compare` is."""
    check_callable(thing, "compare")
    return ProgramSide(thing, tuple(patterns), grads, inside)


@dataclasses.dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of the results of two programs, with respect to what goes into both.

    Attributes:
        pairs: What corresponds.
        programs: The programs that compute them.
        positions: For each point, by identity: which program, which of its outputs, which row of it.
    """

    pairs: list[Pair]
    programs: tuple[Program, Program]
    positions: dict[int, tuple[int, int, int | None]]
    _draws: dict[int, list[list[np.ndarray]]] = dataclasses.field(default_factory=dict)

    def noise(self, point: Point) -> list[np.ndarray]:
        """The gradient as it is where the arithmetic rounds differently, several times."""
        side, number, row = self.positions[id(point)]
        if side not in self._draws:
            moved = [on_host(rounded_otherwise(self.programs[side], draw), "compare") for draw in range(3)]
            self._draws[side] = [[np.asarray(x) for x in outs] for outs in moved]
        return [outs[number] if row is None else outs[number][row] for outs in self._draws[side]]


def gradient_pairs(first: Side, second: Side) -> Gradients | str:
    """The gradients of two programs, matched by argument and, for weights, by value; or why there are none."""
    programs = []
    for side, which in ((first, "first"), (second, "second")):
        program = side.traced()
        if isinstance(program, str):
            return program and f"gradients: the {which} program cannot be traced ({program})"
        try:
            programs.append(with_gradient(program))
        except Exception as error:
            return f"gradients: the {which} program cannot be differentiated ({_first_line(error)})"
    ours, theirs = programs
    try:
        values = [[np.asarray(x) for x in on_host(p(*p.values), "compare")] for p in programs]
    except Exception as error:
        return f"gradients: {_first_line(error)}"
    positions: dict[int, tuple[int, int, int | None]] = {}

    def point(side: int, number: int, name: str, row: int | None) -> Point:
        array = values[side][number] if row is None else values[side][number][row]
        made = Point(f"the gradient of {name}", "", 0, (), True, array, "")
        positions[id(made)] = side, number, row
        return made

    pairs = []
    chosen = [p.output_names for p in programs]
    # Arguments correspond by place.
    named = {name: k for k, name in enumerate(chosen[1]) if name}
    for i, name in enumerate(chosen[0]):
        if name in named:
            label = f"argument {name}"
            pairs.append(Pair(point(0, i, label, None), point(1, named[name], label, None), "path"))
    weights = [[i for i, name in enumerate(names) if not name] for names in chosen]
    arrays = [[p.values[differentiable(q)[i]] for i in numbers] for p, q, numbers in zip(programs, programs, weights)]
    for m in match_parameters(*[[np.asarray(x) for x in side] for side in arrays]):
        i, k = weights[0][m.first], weights[1][m.second]
        label = f"weight {m.first} {arrays[0][m.first].dtype}{list(np.shape(arrays[0][m.first]))}"
        rows = (m.row, None) if m.of_first else (None, m.row)
        pairs.append(Pair(point(0, i, label, rows[0]), point(1, k, label, rows[1]), "value"))
    return Gradients(pairs, (ours, theirs), positions)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:150]}" if text else type(error).__name__
