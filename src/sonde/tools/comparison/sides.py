"""What can be compared: a program, or values that one computed before."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sonde.core import InsideRequest, Pattern, Records, check_callable, glob_matches
from sonde.port.difference import coarsest
from sonde.port.files import read_named_arrays
from sonde.port.gradients import differentiable, with_gradient
from sonde.port.onnx import run_onnx
from sonde.port.rounding import coarsest_dtype, rounded_otherwise
from sonde.port.torch import (
    TorchRun,
    in_single_precision,
    is_torch_module,
    model_of_folder,
    rounding_mode,
    torch_gradients,
    torch_tape,
    weights_of,
    without_padding,
)
from sonde.port.widening import Known, widened
from sonde.programs.traced import Program, inner_constants, kept_program, trace
from sonde.programs.unrolled import Tape, tape_of
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
        n_lacking: How many more arrays go in that have no gradient here: those of jitted functions inside loops.
        with_padding: The same with gradients for padding, and the settings that leave them at zero; None if none does.
    """

    names: Sequence[str]
    inputs: Sequence[np.ndarray]
    arrays: Sequence[np.ndarray]
    rounded_otherwise: Callable[[int], Sequence[np.ndarray]]
    n_lacking: int = 0
    with_padding: Callable[[], tuple[Sequence[np.ndarray], str]] | None = None


class Side:
    """One side of a comparison, with the arguments of the call. Without a program there is only what it computed."""

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Side:
        """The same with arguments."""
        return self

    def run(self) -> Run:
        """What it computes."""
        raise NotImplementedError

    def run_with_gradients(self) -> Run:
        """The same with gradients at the sites."""
        return self.run()

    def rounded_otherwise(self, draw: int, *, gradients: bool = False) -> Run | str:
        """What it computes if the arithmetic rounds differently, in each draw in another way; or why that is not known.

        It is `""` if the noise of the other side has to do. With `gradients`, the run has those at its sites.
        """
        return ""

    def coarsest_dtype(self, run: Run) -> tuple[Any, str]:
        """The dtype of the lowest precision that it computes in, and a line that does; None if that is not known."""
        return None, ""

    def numbers(self) -> Known | None:
        """The numbers that went into it; None if it cannot be computed in another precision."""
        return None

    def in_single_precision(self, known: Known) -> Side:
        """The same, computed in single precision, with what is known of its numbers."""
        raise NotImplementedError

    def gradients(self) -> SideGradients | str:
        """The gradients of its results, or why there are none; `""` if that need not be said."""
        return ""

    def tape(self, *, gradient: bool = False) -> Tape | None:
        """Its single operations, or those of its gradient; None if they are not known, or cannot be run alone."""
        return None


@dataclasses.dataclass(frozen=True)
class ProgramSide(Side):
    """A JAX function; computed in single precision if `known` says what its numbers were before they were rounded."""

    f: Callable
    patterns: tuple[Pattern, ...]
    grads: bool
    inside: InsideRequest | None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    known: Known | None = None
    _moving: dict[Any, Program] = dataclasses.field(default_factory=dict)  # programs to be run with other rounding

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ProgramSide:
        """The same with arguments."""
        return dataclasses.replace(self, args=args, kwargs=kwargs, _moving={})

    def run(self) -> Run:
        """What it computes."""
        if self.known is not None:
            return self._run_traced(lambda program: program(*program.values))
        # A jitted function may donate its arguments, which the other side needs.
        keeps = not isinstance(self.program, str) and not self.program.donates
        args, kwargs = (self.args, self.kwargs) if keeps else jax.tree.map(_copied, (self.args, self.kwargs))
        return run_side(self.f, self.patterns, self.grads, self.inside, args, kwargs)

    def run_with_gradients(self) -> Run:
        """The same with gradients at the sites."""
        return self._run_traced(lambda program: program(*program.values), gradients=True)

    def rounded_otherwise(self, draw: int, *, gradients: bool = False) -> Run | str:
        """What it computes if the arithmetic rounds differently."""
        try:
            return self._run_traced(lambda program: rounded_otherwise(program, draw), gradients=gradients, draw=draw)
        except Exception as error:  # it branches on values, has state, or an operation without a rule
            return first_line(error)

    def _run_traced(
        self, compute: Callable[[Program], list[Any]], *, gradients: bool = False, draw: int | None = None
    ) -> Run:
        """Runs the traced program, or its gradient."""
        key = gradients, None if self.known is None else draw

        def traced() -> list[Any]:
            # Traced in a capture, the program has its sites.
            if key not in self._moving:
                self._moving[key] = self._traced(gradient=gradients, draw=draw)
            return compute(self._moving[key])

        run = run_side(traced, self.patterns, self.grads or gradients, self.inside, (), {})
        names = self._moving[key].output_names
        return Run(run.points, tuple(dataclasses.replace(p, part=name) for p, name in zip(run.results or (), names)))

    def _traced(self, *, gradient: bool = False, draw: int | None = None) -> Program:
        """The program, traced in the running capture if there is one."""
        program = trace(self.f, self.args, self.kwargs)
        program = with_gradient(program) if gradient else program
        return program if self.known is None else widened(program, self.known, draw)

    @functools.cached_property
    def program(self) -> Program | str:
        """The traced program, or why there is none."""
        try:
            return self._traced()
        except Exception as error:
            return first_line(error)

    def coarsest_dtype(self, run: Run) -> tuple[Any, str]:
        """The dtype of the lowest precision among its equations."""
        return (None, "") if isinstance(self.program, str) else coarsest_dtype(self.program)

    def numbers(self) -> Known | None:
        """The numbers in its code and the arrays that it takes."""
        return None if isinstance(self.program, str) else Known.of(self.program)

    def in_single_precision(self, known: Known) -> ProgramSide:
        """The same, computed in single precision."""
        return dataclasses.replace(self, known=known, _moving={})

    def gradients(self) -> SideGradients | str:
        """The gradients of its results."""
        program = self.program
        if isinstance(program, str):
            return f"cannot be traced ({program})"
        try:
            gradient = kept_program(self.f, self._traced(gradient=True))
            arrays = _on_host(gradient(*gradient.values))
        except Exception as error:
            return f"cannot be differentiated ({first_line(error)})"

        def moved(draw: int) -> list[np.ndarray]:
            again = gradient if self.known is None else self._traced(gradient=True, draw=draw)
            return _on_host(rounded_otherwise(again, draw))

        inputs = _on_host([program.values[i] for i in differentiable(program)])
        return SideGradients(gradient.output_names, inputs, arrays, moved, len(inner_constants(program.jaxpr)))

    def tape(self, *, gradient: bool = False) -> Tape | None:
        """Its single operations."""
        if isinstance(self.program, str):
            return None
        return tape_of(traced_with_sites(functools.partial(self._traced, gradient=gradient), self.inside))


@dataclasses.dataclass(frozen=True)
class StoredSide(Side):
    """Values that were computed before: records, or arrays by name. The arguments are for the other side."""

    points: tuple[Point, ...]

    def run(self) -> Run:
        """The values, with gradients if they were recorded."""
        return Run(self.points, None)


@dataclasses.dataclass(frozen=True)
class TorchSide(Side):
    """A PyTorch module; computed in single precision if `known` says what its numbers were before they were rounded."""

    module: Any
    patterns: tuple[Pattern, ...]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    known: Known | None = None

    def called(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TorchSide:
        """The same with arguments."""
        return dataclasses.replace(self, args=args, kwargs=kwargs)

    def run(self) -> Run:
        """What it computes."""
        return self._run(TorchRun.of(*self._call(), grads=False))

    def run_with_gradients(self) -> Run:
        """The same with gradients at the submodules."""
        return self._run(TorchRun.of(*self._call(), grads=True))

    def _call(self, draw: int | None = None) -> tuple[Any, Sequence[Any], Mapping[str, Any]]:
        """The module and what it is called with."""
        if self.known is None:
            return self.module, self.args, self.kwargs
        return in_single_precision(self.module, self.args, self.kwargs, self.known, draw)

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
        around = rounding_mode(draw)
        return self._run(TorchRun.of(*self._call(draw), grads=gradients, around=around))

    def coarsest_dtype(self, run: Run) -> tuple[Any, str]:
        """The dtype of the lowest precision that its submodules return."""
        return coarsest(p.array.dtype for p in (*run.points, *(run.results or ()))), ""

    def numbers(self) -> Known | None:
        """Its weights; the numbers in its code are not known."""
        return Known(arrays=tuple(weights_of(self.module)))

    def in_single_precision(self, known: Known) -> TorchSide:
        """The same, computed in single precision."""
        return dataclasses.replace(self, known=known)

    def gradients(self) -> SideGradients | str:
        """The gradients of its results, by PyTorch."""
        try:
            module, args, kwargs = self._call()
            names, inputs, arrays = torch_gradients(module, args, kwargs)
        except Exception as error:
            return f"cannot be differentiated ({first_line(error)})"

        def with_padding() -> tuple[Sequence[np.ndarray], str]:
            with without_padding(module) as settings:
                return torch_gradients(module, args, kwargs)[2], ", ".join(settings)

        def moved(draw: int) -> Sequence[np.ndarray]:
            return torch_gradients(*self._call(draw), around=rounding_mode(draw))[2]

        with without_padding(self.module) as settings:
            is_padded = bool(settings)
        return SideGradients(names, inputs, arrays, moved, with_padding=with_padding if is_padded else None)

    def tape(self, *, gradient: bool = False) -> Tape | None:
        """Its operations."""
        return None if gradient else torch_tape(*self._call())


@dataclasses.dataclass(frozen=True)
class OnnxSide(Side):
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

    def gradients(self) -> SideGradients | str:
        """There are none."""
        return "is an ONNX file, which has none"


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


def _copied(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


def _on_host(values: Sequence[Any]) -> list[np.ndarray]:
    return [np.asarray(x) for x in on_host(list(values), "compare")]


def first_line(error: Exception) -> str:
    """What went wrong, in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:150]}" if text else type(error).__name__
