"""Where two programs part: operations whose inputs the other program has too, and whose output it does not.

Every value is reduced to a fingerprint (`prints`), with what rounding does to it. A value is *explained* if the other
program has one like it. From a result that differs, the search goes back through what is not explained, up to
operations whose inputs all are. An operation that the other program does in another way has unexplained insides that
rejoin: they are not on the way back.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.port.prints import Print, Prints, print_of
from sonde.port.rounding import moved_step
from sonde.programs.unrolled import Step, Tape

_TIMES = 4  # how many times what rounding did to a fingerprint may be no difference


@dataclasses.dataclass(eq=False)
class Explained:
    """The values of two programs by fingerprint.

    Attributes:
        tapes: The programs.
    """

    tapes: tuple[Tape, Tape]

    def __post_init__(self) -> None:
        self._prints: tuple[dict[int, Print], dict[int, Print]] = ({}, {})

    def fingerprint(self, side: int, number: int) -> Print:
        """The fingerprint of a value of a program."""
        known = self._prints[side]
        if number not in known:
            known[number] = print_of(_numbers(self.tapes[side].values[number]))
        return known[number]

    @functools.cached_property
    def _searched(self) -> tuple[Prints[int], Prints[int]]:
        found = []
        for side, tape in enumerate(self.tapes):
            moved = tape.again({}, around=functools.partial(moved_step, tape))
            prints: Prints[int] = Prints(_TIMES)
            for number, value in enumerate(moved):
                own = self.fingerprint(side, number)
                if own.telling:
                    other = print_of(_numbers(value))
                    apart = own.apart(other)
                    prints.add(own, number, _TIMES * apart if np.isfinite(apart) else 0.0)
            found.append(prints)
        return found[0], found[1]

    def like(self, side: int, number: int) -> list[int]:
        """The values of the other program that are like a value of this one."""
        return self._searched[1 - side].equal_to(self.fingerprint(side, number))

    def explained(self, side: int, number: int) -> bool:
        """Whether the other program has a value like it, or it says too little.

        Whole numbers and constants do, and single numbers that depend on nothing that goes into the program.
        """
        own = self.fingerprint(side, number)
        if not own.telling or (own.size == 1 and number not in self._depending[side]):
            return True
        return bool(self.like(side, number))

    @functools.cached_property
    def _depending(self) -> list[set[int]]:
        """For each program, the values that depend on its inputs and constants."""
        found = []
        for tape in self.tapes:
            numbers = set(tape.given)
            for step in tape.steps:
                if not numbers.isdisjoint(step.inputs):
                    numbers.update(step.outputs)
            found.append(numbers)
        return found

    def origins(self, side: int, results: Sequence[int]) -> list[int]:
        """The steps at which a program leaves the other one on the way to some values, in order."""
        tape = self.tapes[side]
        origins, seen, todo = set(), set(), list(results)
        while todo:
            number = todo.pop()
            maker = tape.makers[number]
            if maker is None or maker in seen or self.explained(side, number):
                continue
            seen.add(maker)
            computed = [
                i for i in tape.steps[maker].inputs if not self.explained(side, i) and not self.is_moved_input(side, i)
            ]
            todo += computed
            if not computed:
                origins.add(maker)
        return sorted(origins)

    def departures(self, side: int) -> list[int]:
        """All steps whose inputs are explained, and whose outputs are not, in order."""
        tape = self.tapes[side]
        return [
            number
            for number, step in enumerate(tape.steps)
            if not all(self.explained(side, i) for i in step.outputs)
            and all(self.explained(side, i) or self.is_moved_input(side, i) for i in step.inputs)
        ]

    def is_moved_input(self, side: int, number: int) -> bool:
        """Whether a value is an input or a constant of the program, or a part of one."""
        tape = self.tapes[side]
        maker = tape.makers[number]
        while maker is not None and is_move(tape.steps[maker]):
            number = tape.steps[maker].inputs[0]
            maker = tape.makers[number]
        return maker is None

    def described(self, side: int, number: int) -> str:
        """A step with its numbers."""
        tape = self.tapes[side]
        step = tape.steps[number]
        operands = [_operand(tape.values[i]) for i in step.inputs]
        settings = [f"{k}={v}" for k, v in step.settings.items() if k in ("y", "approximate", "dimension", "index")]
        return f"{step.name}({', '.join([*operands, *settings])})"


def _numbers(value: Any) -> np.ndarray:
    dtype = getattr(value, "dtype", None)
    if dtype is not None and not (jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)):
        return np.zeros(0)  # a random key
    return np.asarray(value)


def _operand(value: Any) -> str:
    number = scalar_of(value)
    if number is not None:
        return f"{number:.6g}"
    return f"{np.dtype(value.dtype).name}{list(np.shape(value))}"


def scalar_of(value: Any) -> float | None:
    """The number that an operand is, if it is one, or an array of equal numbers; None otherwise."""
    array = _numbers(value)
    if not array.size or array.dtype == bool or np.iscomplexobj(array):
        return None
    first = array.ravel()[0]
    return float(first) if array.size == 1 or bool(np.all(array == first)) else None


def is_move(step: Step) -> bool:
    """Whether a step only moves numbers, and takes the same ones whatever they are."""
    if step.name in ("row", "rows"):
        return True
    return _jax.only_moves(step.name) and _jax.facts_of(step.name).exact and len(step.inputs) == 1
