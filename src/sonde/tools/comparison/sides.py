"""What can be compared: a program, or values that one computed before."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from sonde.core import InsideRequest, Pattern, Records, check_callable, glob_matches
from sonde.port.difference import coarsest
from sonde.port.files import read_named_arrays
from sonde.port.gradients import differentiable, with_gradient
from sonde.port.onnx import run_onnx
from sonde.port.parameters import match_parameters
from sonde.port.prints import print_of
from sonde.port.rounding import coarsest_dtype, rounded_otherwise
from sonde.port.torch import is_torch_module, model_of_folder
from sonde.programs.traced import Program, trace
from sonde.programs.unrolled import Tape, tape_of
from sonde.tools.comparison.matching import By, Pair
from sonde.tools.comparison.runs import (
    RESULT,
    Point,
    Run,
    points_of,
    run_side,
    traced_with_sites,
)
from sonde.tools.execution.record_values import on_host


@dataclasses.dataclass(frozen=True, eq=False)
class SideGradients:
    """The gradients of a fixed random combination of the results, with respect to everything that goes in.

    Attributes:
        names: For each gradient, where in the arguments its input is; `""` for a weight.
        inputs: What each is the gradient with respect to.
        arrays: The gradients.
        rounded_otherwise: The same where the arithmetic rounds differently; each number in another way.
    """

    names: Sequence[str]
    inputs: Sequence[np.ndarray]
    arrays: Sequence[np.ndarray]
    rounded_otherwise: Callable[[int], Sequence[np.ndarray]]


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

    def rounded_otherwise(self, draw: int, *, gradients: bool = False) -> Run | str:
        """What it computes if the arithmetic rounds differently, in each draw in another way; or why that is not known.

        It is `""` if the noise of the other side has to do. With `gradients`, the run has those at its sites.
        """
        ...

    def coarsest_dtype(self, run: Run) -> tuple[Any, str]:
        """The dtype of the lowest precision that it computes in, and a line that does; None if that is not known."""
        ...

    def gradients(self) -> SideGradients | str:
        """The gradients of its results, or why there are none; `""` if that need not be said."""
        ...

    def tape(self, *, gradient: bool = False) -> Tape | None:
        """Its single operations, or those of its gradient; None if they are not known."""
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
    _moving: dict[bool, Program] = dataclasses.field(default_factory=dict)  # programs to be run with other rounding

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ProgramSide:
        """The same with arguments."""
        return dataclasses.replace(self, args=args, kwargs=kwargs, _moving={})

    def run(self) -> Run:
        """What it computes."""
        # A jitted function may donate its arguments, which the other side needs.
        keeps = not isinstance(self.program, str) and not self.program.donates
        args, kwargs = (self.args, self.kwargs) if keeps else jax.tree.map(_copied, (self.args, self.kwargs))
        return run_side(self.f, self.patterns, self.grads, self.inside, args, kwargs)

    def run_with_gradients(self) -> Run:
        """The same with gradients at the sites."""

        def differentiated() -> Any:
            program = self._gradient_traced_again()
            return program(*program.values)

        return run_side(differentiated, self.patterns, True, self.inside, (), {})

    def rounded_otherwise(self, draw: int, *, gradients: bool = False) -> Run | str:
        """What it computes if the arithmetic rounds differently."""

        def moved() -> list[Any]:
            # Traced in a capture, the program has its sites.
            if gradients not in self._moving:
                self._moving[gradients] = self._gradient_traced_again() if gradients else self._traced()
            return rounded_otherwise(self._moving[gradients], draw)

        try:
            run = run_side(moved, self.patterns, self.grads or gradients, self.inside, (), {})
        except Exception as error:  # it branches on values, has state, or an operation without a rule
            return _first_line(error)
        names = self._moving[gradients].output_names
        return Run(run.points, tuple(dataclasses.replace(p, part=name) for p, name in zip(run.results or (), names)))

    def _traced(self) -> Program:
        return trace(self.f, self.args, self.kwargs)

    def _gradient_traced_again(self) -> Program:
        """The gradient, traced in the running capture: it then has the sites of the program."""
        return with_gradient(self._traced())

    @functools.cached_property
    def program(self) -> Program | str:
        """The traced program, or why there is none."""
        try:
            return self._traced()
        except Exception as error:
            return _first_line(error)

    def coarsest_dtype(self, run: Run) -> tuple[Any, str]:
        """The dtype of the lowest precision among its equations."""
        return (None, "") if isinstance(self.program, str) else coarsest_dtype(self.program)

    def gradients(self) -> SideGradients | str:
        """The gradients of its results."""
        program = self.program
        if isinstance(program, str):
            return f"cannot be traced ({program})"
        try:
            gradient = with_gradient(program)
            arrays = _on_host(gradient(*gradient.values))
        except Exception as error:
            return f"cannot be differentiated ({_first_line(error)})"
        inputs = _on_host([program.values[i] for i in differentiable(program)])
        return SideGradients(
            gradient.output_names, inputs, arrays, lambda draw: _on_host(rounded_otherwise(gradient, draw))
        )

    def tape(self, *, gradient: bool = False) -> Tape | None:
        """Its single operations."""
        if isinstance(self.program, str):
            return None
        make = self._gradient_traced_again if gradient else self._traced
        return tape_of(traced_with_sites(make, self.inside))


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

    def rounded_otherwise(self, draw: int, *, gradients: bool = False) -> Run | str:
        """Nothing: the noise of the other side has to do."""
        return ""

    def coarsest_dtype(self, run: Run) -> tuple[Any, str]:
        """Not known: values may have been stored in another dtype."""
        return None, ""

    def gradients(self) -> SideGradients | str:
        """There are none."""
        return ""

    def tape(self, *, gradient: bool = False) -> Tape | None:
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

    def rounded_otherwise(self, draw: int, *, gradients: bool = False) -> Run | str:
        """What it computes if the arithmetic rounds differently."""
        from sonde.port.torch import TorchRun, rounding_mode

        around = rounding_mode(draw)
        return self._run(TorchRun.of(self.module, self.args, self.kwargs, grads=gradients, around=around))

    def coarsest_dtype(self, run: Run) -> tuple[Any, str]:
        """The dtype of the lowest precision that its submodules return."""
        return coarsest(p.array.dtype for p in (*run.points, *(run.results or ()))), ""

    def gradients(self) -> SideGradients | str:
        """The gradients of its results, by PyTorch."""
        from sonde.port.torch import rounding_mode, torch_gradients

        try:
            names, inputs, arrays = torch_gradients(self.module, self.args, self.kwargs)
        except Exception as error:
            return f"cannot be differentiated ({_first_line(error)})"
        return SideGradients(
            names,
            inputs,
            arrays,
            lambda draw: torch_gradients(self.module, self.args, self.kwargs, around=rounding_mode(draw))[2],
        )

    def tape(self, *, gradient: bool = False) -> Tape | None:
        """Its operations."""
        from sonde.port.torch import torch_tape

        return None if gradient else torch_tape(self.module, self.args, self.kwargs)


@dataclasses.dataclass(frozen=True)
class OnnxSide:
    """An ONNX file."""

    file: Path
    patterns: tuple[Pattern, ...]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnnxSide:
        """The same with arguments."""
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def run(self) -> Run:
        """What it computes."""
        steps, results = run_onnx(self.file, self.args, self.kwargs)
        globs = [p for p in self.patterns if isinstance(p, str)]
        points = [
            Point(name, "", 0, (), False, array, "", (0, [(order, 0)]))
            for order, (name, array) in enumerate(steps)
            if not globs or any(glob_matches(p, name) for p in globs)
        ]
        return Run(tuple(points), tuple(Point(RESULT, name, 0, (), False, array, "") for name, array in results))

    def run_with_gradients(self) -> Run:
        """The same: a graph has no gradients."""
        return self.run()

    def rounded_otherwise(self, draw: int, *, gradients: bool = False) -> Run | str:
        """Nothing: the noise of the other side has to do."""
        return ""

    def coarsest_dtype(self, run: Run) -> tuple[Any, str]:
        """Not known: values may have been stored in another dtype."""
        return None, ""

    def gradients(self) -> SideGradients | str:
        """There are none."""
        return "is an ONNX file, which has none"

    def tape(self, *, gradient: bool = False) -> Tape | None:
        """There are no operations that can be run alone."""
        return None


@dataclasses.dataclass(frozen=True)
class Call:
    """A program with its own arguments, as a side of `compare`: those of the call are for the other side."""

    f: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class CalledSide:
    """A side whose arguments are known already."""

    side: Side

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Side:
        """The side as it is."""
        return self.side


def side_of(thing: Any, patterns: Sequence[Pattern], grads: bool, inside: InsideRequest | None) -> Side | CalledSide:
    """The side that an argument of `compare` is."""
    if isinstance(thing, Call):
        side = side_of(thing.f, patterns, grads, inside)
        return CalledSide(side.called(thing.args, thing.kwargs))
    if isinstance(thing, Records):
        return StoredSide(points_of(thing))
    if isinstance(thing, str | Path):
        path = Path(thing)
        if path.suffix == ".onnx":
            return OnnxSide(path, tuple(patterns))
        thing = model_of_folder(path) if path.is_dir() else read_named_arrays(path)
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
        unchecked: What could not be compared, and why.
    """

    pairs: list[Pair]
    unchecked: list[str]
    _sides: tuple[SideGradients, SideGradients]
    _made: dict[int, tuple[int, _Pick]] = dataclasses.field(default_factory=dict)  # by identity of the point
    _draws: dict[tuple[int, int], Sequence[np.ndarray]] = dataclasses.field(default_factory=dict)

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
            made = _first_line(error)
        if isinstance(made, str):
            return made and f"gradients: the {which} program {made}"
        sides.append(made)
    gradients = Gradients([], [], (sides[0], sides[1]))
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


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


def _on_host(values: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(x) for x in on_host(list(values), "compare")]


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:150]}" if text else type(error).__name__
