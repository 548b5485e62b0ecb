"""The values that the arguments of a program stand for, while the program is traced.

JAX traces a program with the types of its arguments alone. The values are in variables of the functions of JAX that
want the trace, and these are on the stack until the trace ends. They are looked for there: a sequence of as many arrays
as the program has arguments, with shapes that fit. Nothing is changed, and nothing is kept.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import partial_eval as _pe

__all__ = ["TracedPrograms", "callers", "is_own", "operands_above"]

_JAX = os.path.dirname(os.path.abspath(jax.__file__)) + os.sep
_SONDE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PASSED = (_SONDE, os.sep + "contextlib.py", os.sep + "functools.py")
_NUMBERS = (bool, int, float, complex)
_SEQUENCES = ("list", "tuple", "FlatTree", "FTPyTree", "FTTuple")  # the last two from JAX 0.12 on


class TracedPrograms:
    """The programs that are being traced in this thread, as the stack has them.

    Args:
        boundaries: Frames on the stack between which the programs are told apart.
    """

    def __init__(self, boundaries: Sequence[Any]) -> None:
        self._frames: dict[int, FrameType] = {}
        self._numbers: dict[int, dict[int, int]] = {}
        self._values: dict[int, list[Any] | None] = {}
        self._levels: dict[int, int] = {}
        known = {id(frame): i for i, frame in enumerate(boundaries) if frame is not None}
        last: Any = None
        for frame in _stack():
            trace = _trace_made_in(frame)
            if trace is not None:
                last = trace
                self._frames[id(trace)] = frame
            elif last is not None and id(frame) in known:
                self._levels[id(last)] = known[id(frame)]
                last = None

    def argument(self, tracer: Any) -> tuple[int | None, int, Any] | None:
        """Of an argument of a program: the boundary around the program, its number, and the value it stands for.

        The boundary is None if the program has none. The result is None if the tracer is no argument, or if its value
        is not found.
        """
        if not isinstance(tracer, _pe.DynamicJaxprTracer):
            return None
        trace = tracer._trace
        frame = self._frames.get(id(trace))
        if frame is None:
            return None
        if id(trace) not in self._numbers:
            self._numbers[id(trace)] = {id(var): i for i, var in enumerate(trace.frame.invars)}
            self._values[id(trace)] = operands_above(frame.f_back, [var.aval for var in trace.frame.invars])
        number, values = self._numbers[id(trace)].get(id(tracer.val)), self._values[id(trace)]
        if number is None or values is None:
            return None
        return self._levels.get(id(trace)), number, values[number]


def operands_above(frame: Any, types: Sequence[Any]) -> list[Any] | None:
    """The values that a function of JAX was called with for arguments of some types; None if they are not found.

    Args:
        frame: A frame that the function has called; None for that of the caller.
        types: The types of the arguments of the program. Those of what `scan` runs over lack the first axis.
    """
    frame = sys._getframe(1) if frame is None else frame
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_JAX):
            for value in list(frame.f_locals.values()):
                found = _values_of(value)
                if found is not None and len(found) == len(types) and all(map(_fits, found, types)):
                    return found
        elif not name.startswith(_SONDE) and not name.endswith(_PASSED[1:]):
            return None
        frame = frame.f_back
    return None


def callers(n: int) -> tuple[tuple[Any, int], ...]:
    """The code of the innermost functions outside of Sonde that run, each with the instruction it is at."""
    outside = (frame for frame in _stack() if not is_own(frame))
    return tuple((frame.f_code, frame.f_lasti) for frame in itertools.islice(outside, n))


def is_own(frame: FrameType) -> bool:
    """Whether a function of Sonde runs in a frame."""
    return frame.f_code.co_filename.startswith(_SONDE)


def _stack() -> Iterator[FrameType]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


@functools.cache
def _name_of_trace(code: Any) -> str | None:
    """The variable of a function of JAX that holds the trace of a program, made there."""
    if code.co_filename not in (_pe.__file__, _ad.__file__):
        return None
    names = (*code.co_varnames, *code.co_cellvars)
    return next((name for name in ("primal_trace", "trace") if name in names), None)


def _trace_made_in(frame: FrameType) -> Any:
    name = _name_of_trace(frame.f_code)
    trace = None if name is None else frame.f_locals.get(name)
    return trace if isinstance(trace, _pe.DynamicJaxprTrace) and "self" not in frame.f_locals else None


def _values_of(value: Any) -> list[Any] | None:
    if type(value).__name__ not in _SEQUENCES:
        return None
    values = list(value)
    return values if all(isinstance(x, (jax.Array, np.ndarray, np.generic, *_NUMBERS)) for x in values) else None


def _fits(value: Any, aval: Any) -> bool:
    shape, wanted = np.shape(value), getattr(aval, "shape", None)
    return shape == wanted or shape[1:] == wanted
