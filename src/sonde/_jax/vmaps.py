"""Which `vmap` an axis is from: two axes of the same size are still two axes.

JAX tells batching rules no more than the size and the name of an axis. While a capture runs,
`patches.maps_told_apart` makes it tell them this too.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from typing import Any, NamedTuple

from jax._src import core as _core
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _pe

from sonde._jax.imported import AxisData

__all__ = ["ExampleName", "MappedBy", "in_these_runs", "mapped_by", "runs_of_maps"]


class ExampleName(str):
    """A name on equations that a `vmap` has made, which says where the mapped axis is.

    Attributes:
        size: How long the axis is.
        inputs: Where it is in each operand of the operation that was mapped; None if the operand has none.
        outputs: The same for the results.
    """

    size: int
    inputs: tuple[int | None, ...] = ()
    outputs: tuple[int | None, ...] = ()

    def position(self, output: int, shape: tuple[int, ...], backward: bool) -> int | None:
        """Where the axis is in a result of an equation; None if that is not known.

        Args:
            output: Which result.
            shape: Its shape.
            backward: Whether the equation is in a backward pass: its result belongs to an operand.
        """
        own = self.outputs[output] if not backward and output < len(self.outputs) else None
        for dim in (own, *((*self.inputs, *self.outputs) if backward else self.outputs)):
            if dim is not None and dim < len(shape) and shape[dim] == self.size:
                return dim
        return None


class MappedBy(NamedTuple):
    """Which `vmap` made an axis: two axes of the same size are still two axes.

    Attributes:
        program: Identifies the program in which the `vmap` is called: one that is traced, or the one that runs.
        path: The numbers of the `vmap`s around it in that program, and its own. In a program that
            is traced each has its own number. In the one that runs all have the same, or compiled programs could not be
            reused.
        runs: Identify the individual calls of those `vmap`s, in the program that runs; None if unknown.
        inherited: For an axis of a gradient, whether it comes from its value.
    """

    program: object
    path: tuple[int, ...]
    runs: tuple[object, ...] | None = None
    inherited: bool = False

    def is_around(self, other: MappedBy) -> bool:
        """Whether the other is known to be called inside this one."""
        n = len(self.path)
        inside = n < len(other.path) and self[:2] == (other.program, other.path[:n])
        return inside and (self.runs is None) == (other.runs is None) and (other.runs or ())[:n] == (self.runs or ())


@dataclasses.dataclass(frozen=True, slots=True)
class NumberedAxis(_batching.AxisData):
    """What batching rules learn about a mapped axis, and which `vmap` it is from."""

    mapped_by: MappedBy | None = None
    plain: Any = dataclasses.field(default=None, compare=False)


class _Program:
    """A program that is being traced."""

    __slots__ = ("n_maps",)

    def __init__(self) -> None:
        self.n_maps = 0

    def number(self) -> int:
        self.n_maps += 1
        return self.n_maps


RUNNING = object()  # the program that runs
_programs: weakref.WeakKeyDictionary[Any, _Program] = weakref.WeakKeyDictionary()


class _Runs(threading.local):
    """The active calls of `vmap` in this thread, in the program that runs."""

    def __init__(self) -> None:
        self.now: tuple[object, ...] = ()


_runs = _Runs()


def _program_of(trace: Any) -> tuple[_Program | None, list[Any]]:
    """The program that a trace builds, None if the program runs; and the axes of the `vmap`s around the trace."""
    maps = []
    while trace is not None and not isinstance(trace, _pe.DynamicJaxprTrace):
        if isinstance(trace, _batching.BatchTrace):
            maps.insert(0, trace.axis_data)
        trace = getattr(trace, "parent_trace", None) or getattr(trace, "parent", None)
    return None if trace is None else _programs.setdefault(trace, _Program()), maps


def mapped_next() -> MappedBy:
    """The identity of a `vmap` that begins now."""
    program, maps = _program_of(_core.trace_ctx.trace)
    if program is None:
        return MappedBy(RUNNING, (0,) * (len(maps) + 1))
    around = mapped_by(maps[-1]) if maps else None
    return MappedBy(program, (*(() if around is None else around.path), program.number()))


class CallOfMap:
    """A call of a `vmap` in the program that runs."""

    __slots__ = ("_depth", "_fun")

    def __init__(self, fun: Any, depth: int) -> None:
        self._fun = fun
        self._depth = depth

    def call_wrapped(self, *args: Any) -> Any:
        before = _runs.now
        _runs.now = (*before[: self._depth], object())
        try:
            return self._fun.call_wrapped(*args)
        finally:
            _runs.now = before


def mapped_by(axis_data: AxisData) -> MappedBy | None:
    """Which `vmap` an axis is from, as JAX tells a batching rule; None if that is not known."""
    return getattr(axis_data, "mapped_by", None)


def runs_of_maps(trace: Any) -> tuple[object, ...]:
    """The calls of `vmap` around a trace, outermost first, each a separate object; none if the program is traced."""
    return _runs.now if _runs.now and _program_of(trace)[0] is None else ()


def in_these_runs(mapped: MappedBy | None, runs: tuple[object, ...]) -> MappedBy | None:
    """Which `vmap` made an axis, with the call of it that runs, unless it is from an earlier one."""
    if mapped is None or mapped.program is not RUNNING or mapped.inherited or mapped.runs is not None:
        return mapped
    return mapped._replace(runs=runs[: len(mapped.path)]) if len(mapped.path) <= len(runs) else mapped
