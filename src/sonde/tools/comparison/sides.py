"""What can be compared: a program, or values that one computed before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sonde.core import InsideRequest, Pattern, Records, check_callable, glob_matches
from sonde.port.files import read_named_arrays
from sonde.port.gradients import differentiable, with_gradient
from sonde.port.parameters import match_parameters
from sonde.port.rounding import rounded_otherwise
from sonde.port.torch import is_torch_module
from sonde.programs.traced import Program, trace
from sonde.programs.unrolled import Tape, tape_of
from sonde.tools.comparison.matching import Pair
from sonde.tools.comparison.runs import RESULT, Point, Run, points_of, run_rounded_otherwise, run_side
from sonde.tools.execution.record_values import on_host


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

    def tape(self) -> Tape | None:
        """Its single operations; None if they are not known."""
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

    def tape(self) -> Tape | None:
        """Its single operations."""
        program = self.traced()
        return None if isinstance(program, str) else tape_of(program)


@dataclasses.dataclass(frozen=True)
class StoredSide:
    """Values that were computed before: records, or arrays by name."""

    points: tuple[Point, ...]

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> StoredSide:
        """The same: the arguments are for the other side."""
        return self

    def run(self) -> Run:
        """The values."""
        return Run(self.points, None)

    def run_with_gradients(self) -> Run:
        """The values, with gradients if they were recorded."""
        return self.run()

    def rounded_otherwise(self, draws: int) -> tuple[list[Run], str]:
        """Nothing: the noise of the other side has to do."""
        return [], ""

    def traced(self) -> Program | str:
        """There is no program."""
        return ""

    def tape(self) -> Tape | None:
        """There are no operations."""
        return None


@dataclasses.dataclass(frozen=True)
class TorchSide:
    """A PyTorch module."""

    module: Any
    patterns: tuple[Pattern, ...]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TorchSide:
        """The same with arguments."""
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def run(self) -> Run:
        """What it computes."""
        from sonde.port.torch import TorchRun

        return self._run(TorchRun.of(self.module, self.args, self.kwargs, grads=False))

    def run_with_gradients(self) -> Run:
        """The same with gradients at the submodules."""
        from sonde.port.torch import TorchRun

        return self._run(TorchRun.of(self.module, self.args, self.kwargs, grads=True))

    def _run(self, run: Any) -> Run:
        globs = [p for p in self.patterns if isinstance(p, str)]
        calls: dict[str, int] = {}
        points = []
        for order, value in enumerate(run.values):
            if globs and not any(glob_matches(p, value.path) for p in globs):
                continue
            call = calls[value.path] = calls.get(value.path, -1) + 1
            points.append(Point(value.path, "", call, (), False, value.array, "", (0, [(order, 0)])))
            if value.gradient is not None:
                points.append(Point(value.path, "", call, (), True, value.gradient, "", (1, [(-order, 0)])))
        results = tuple(Point(RESULT, place, 0, (), False, array, "") for place, array in run.results)
        return Run(tuple(sorted(points, key=lambda p: p.order)), results)

    def rounded_otherwise(self, draws: int) -> tuple[list[Run], str]:
        """What it computes if the arithmetic rounds differently."""
        from sonde.port.torch import TorchRun, rounding_mode

        runs = [
            TorchRun.of(self.module, self.args, self.kwargs, grads=False, around=rounding_mode(draw))
            for draw in range(draws)
        ]
        return [self._run(run) for run in runs], ""

    def traced(self) -> Program | str:
        """There is no program of JAX."""
        return "it is a PyTorch module"

    def tape(self) -> Tape | None:
        """Its operations."""
        from sonde.port.torch import torch_tape

        return torch_tape(self.module, self.args, self.kwargs)


def side_of(thing: Any, patterns: Sequence[Pattern], grads: bool, inside: InsideRequest | None) -> Side:
    """The side that an argument of `compare` is."""
    if isinstance(thing, Records):
        return StoredSide(points_of(thing))
    if isinstance(thing, str | Path):
        thing = read_named_arrays(thing)
    if isinstance(thing, Mapping):
        named = enumerate(thing.items())
        return StoredSide(
            tuple(Point(name, "", 0, (), False, np.asarray(x), "", (0, [(i, 0)])) for i, (name, x) in named)
        )
    if is_torch_module(thing):
        return TorchSide(thing, tuple(patterns))
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
