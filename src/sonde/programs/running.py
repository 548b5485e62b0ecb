"""Runs flat programs: the numbers of slots, computed when they are first asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from sonde import _jax
from sonde.core import with_capture_state
from sonde.programs.callbacks import Callbacks
from sonde.programs.flat import Equation, Level

_MOST_BYTES = 2**30  # values of a level that are kept at once


def run_equation(equation: Equation, values: Sequence[Any], callbacks: Callbacks | None = None) -> list[Any]:
    """What an equation computes from these operands, under the current trace."""
    params = equation.params
    if callbacks is not None:
        changed = callbacks.safe(equation.primitive, params)
        if changed is None:
            return []
        params = changed
    return _jax.run_operation(equation.primitive, params, values, equation.context)


def bytes_of(aval: Any) -> int:
    """How much memory a value of a type takes."""
    dtype = getattr(aval, "dtype", None)
    return 0 if dtype is None else int(np.prod(aval.shape, dtype=np.int64)) * getattr(dtype, "itemsize", 8)


Run = Callable[[Callable[..., list[Any]], Sequence[Any], Sequence[Any]], list[Any]]


def run_plain(program: Callable[..., list[Any]], values: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """Compiles and runs a function of flat values."""
    del types
    with with_capture_state(None):
        return compiled(program)(*values)


def run_optimized(program: Callable[..., list[Any]], values: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """Compiles a function as a user's program is, and runs it: takes longer, with nearly the rounding of that."""
    del types
    with with_capture_state(None):
        return jax.jit(program)(*values)


def compiled(program: Callable[..., list[Any]]) -> Any:
    """A compiled function, with little optimization: the search wants its answer soon, and runs it a few times."""
    return jax.jit(program, compiler_options=dict(_jax.QUICK_COMPILATION))


class Values:
    """The numbers of a level's slots, computed when they are first asked for.

    The equations are divided into segments whose values fit into memory together. If there is more than one, only what
    later segments need is kept, and a segment runs again when one of its values is asked for.
    """

    def __init__(
        self,
        level: Level,
        inputs: Sequence[Any],
        callbacks: Callbacks,
        *,
        run: Run = run_plain,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self.level = level
        self.callbacks = callbacks
        self._run = run
        # What stays: the inputs, constants, and values that later segments need (all, if there is one segment).
        self._kept: dict[int, Any] = {**dict(enumerate(inputs)), **level.constants}
        self._segments = _segments(level, most_bytes)
        self._done = 0  # how many segments have run
        # All values of the segment that ran last for a value that did not stay, and its number: a walk back asks for
        # many values of one segment before it goes on to the one before.
        self._passing: dict[int, Any] = {}
        self._held: int | None = None
        self._host: dict[int, np.ndarray] = {}

    def __getitem__(self, slot: int) -> Any:
        """The value of a slot, on its device."""
        if slot in self._kept:
            return self._kept[slot]
        number = self._segment_of(slot)
        while self._done <= number:
            self._advance()
        if slot in self._kept:
            return self._kept[slot]
        if self._held != number:
            self._passing = self._values_of(number)
            self._held = number
        return self._passing[slot]

    def host(self, slot: int) -> np.ndarray:
        """The value of a slot as a NumPy array."""
        array = self._host.get(slot)
        if array is None:
            array = self._host[slot] = on_host(self[slot])
        return array

    def put(self, values: dict[int, Any]) -> None:
        """Takes other values for slots that are known before the program runs."""
        self._kept.update(values)

    def many(self, slots: Sequence[int]) -> list[Any]:
        """The values of several slots."""
        return [self[slot] for slot in slots]

    def _segment_of(self, slot: int) -> int:
        equation = self.level.makers[slot]
        return next(i for i, segment in enumerate(self._segments) if equation < segment.stop)

    def _advance(self) -> None:
        number = self._done
        values = self._values_of(number)
        self._done += 1
        if len(self._segments) == 1:
            self._kept.update(values)
        else:
            self._kept.update({slot: values[slot] for slot in self._segments[number].needed_later})

    def _values_of(self, number: int) -> dict[int, Any]:
        segment, level = self._segments[number], self.level
        inputs = segment.inputs
        outputs = segment.outputs

        def program(*given: Any) -> list[Any]:
            env = dict(zip(inputs, given))
            for equation in level.equations[segment.start : segment.stop]:
                operands = [env[s] if s in env else level.constants[s] for s in equation.inputs]
                env.update(zip(equation.outputs, run_equation(equation, operands, self.callbacks)))
            return [env[slot] for slot in outputs]

        types = [level.types[slot] for slot in inputs], [level.types[slot] for slot in outputs]
        return dict(zip(outputs, self._run(program, self.many(inputs), types)))


@dataclasses.dataclass(frozen=True, slots=True)
class _Segment:
    """Equations that run together, and the slots that they take and compute.

    Attributes:
        start: The number of the first equation.
        stop: That after the last one.
        inputs: The slots that they use and do not compute.
        outputs: The slots that they compute.
        needed_later: Those of them that later segments use, or that the program returns.
    """

    start: int
    stop: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    needed_later: tuple[int, ...]


def _segments(level: Level, most_bytes: int) -> list[_Segment]:
    """The segments of a level whose values take so many bytes each, or one equation with more."""
    bounds, total = [0], 0
    for number, equation in enumerate(level.equations):
        size = sum(bytes_of(level.types[slot]) for slot in equation.outputs)
        if total and total + size > most_bytes:
            bounds.append(number)
            total = 0
        total += size
    last_use = {slot: n for n, e in enumerate(level.equations) for slot in e.inputs}
    segments = []
    for start, stop in zip(bounds, [*bounds[1:], len(level.equations)]):
        made: dict[int, None] = {}
        used: dict[int, None] = {}
        for equation in level.equations[start:stop]:
            for slot in equation.inputs:
                # Scalars stay in the program: some rules look at them while it is traced.
                if slot not in made and not (slot in level.constants and not np.ndim(level.constants[slot])):
                    used[slot] = None
            made.update(dict.fromkeys(equation.outputs))
        later = tuple(slot for slot in made if last_use.get(slot, -1) >= stop or slot in level.outputs)
        segments.append(_Segment(start, stop, tuple(used), tuple(made), later))
    return segments


def on_host(value: Any) -> np.ndarray:
    """A value as a NumPy array; keys of random numbers as their data."""
    if isinstance(getattr(value, "dtype", None), _jax.ExtendedDType):
        value = jax.random.key_data(value)
    if not isinstance(value, jax.Array) or value.is_fully_addressable:
        return np.asarray(value)
    if value.is_fully_replicated:
        return np.asarray(value.addressable_data(0))
    # Each process holds a part. All need the whole: they take the same decisions, and so run the same programs next.
    return np.asarray(multihost_utils.process_allgather(value, tiled=True))
