"""Where two programs part: operations whose inputs the other program has too, and whose output it does not.

Every value is reduced to a fingerprint (`prints`), with what rounding does to it. A value is *explained* if the other
program has one like it, in whatever layout; or if what follows from it is explained, since it is then part of another
formula for the same. From a result that differs, the search goes back through what is not explained, up to operations
whose inputs all are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.port.layouts import are_arranged
from sonde.port.prints import Print, Prints, print_of
from sonde.port.rounding import moved_step
from sonde.programs.unrolled import Step, Tape, as_numbers

_MASKED = -1e9  # masks of this or less are as good as those of minus infinity
# Of tapes, and of PyTorch.
_OTHER_MOVES = frozenset(
    ["row", "rows", "t", "view", "_unsafe_view", "permute", "unsqueeze", "expand", "unbind", "clone", "detach"]
    + ["alias", "lift_fresh"]
)
_PARTS = frozenset(
    ["row", "slice", "split", "select", "narrow", "unbind", "unsafe_split", "split_with_sizes"]
    + ["unsafe_split_with_sizes"]
)
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
        self._known: tuple[dict[int, bool], dict[int, bool]] = ({}, {})
        self._noise: tuple[dict[int, float], dict[int, float]] = ({}, {})

    def fingerprint(self, side: int, number: int) -> Print:
        """The fingerprint of a value of a program."""
        known = self._prints[side]
        if number not in known:
            known[number] = print_of(_numbers(self.tapes[side].values[number]))
        return known[number]

    @functools.cached_property
    def _searched(self) -> tuple[Prints[int], Prints[int]]:
        searched = []
        for side, tape in enumerate(self.tapes):
            moved = tape.again({}, around=functools.partial(moved_step, tape))
            prints: Prints[int] = Prints(_TIMES)
            for number, value in enumerate(moved):
                own = self.fingerprint(side, number)
                if own.telling:
                    other = print_of(_numbers(value))
                    apart = own.apart(other)
                    self._noise[side][number] = _TIMES * apart if np.isfinite(apart) else 0.0
                    prints.add(own, number, self._noise[side][number])
            searched.append(prints)
        return searched[0], searched[1]

    def like(self, side: int, number: int) -> list[int]:
        """The values of the other program that have the numbers of a value of this one, in any order."""
        searched = self._searched[1 - side]  # measures the noise
        # What rounding does to PyTorch's operations is not known: the other program tells.
        return searched.equal_to(self.fingerprint(side, number), self._noise[side].get(number, 0.0))

    def with_fingerprint(self, side: int, fingerprint: Print) -> list[int]:
        """The values of a program that have a fingerprint."""
        return self._searched[side].equal_to(fingerprint)

    def explained(self, side: int, number: int) -> bool:
        """Whether the other program has a value like it, or it says too little.

        Whole numbers and constants do, and single numbers that depend on nothing that goes into the program.
        """
        known = self._known[side]
        if number not in known:
            known[number] = self._is_explained(side, number)
        return known[number]

    def _is_explained(self, side: int, number: int) -> bool:
        own = self.fingerprint(side, number)
        if not own.telling or (own.size == 1 and number not in self._depending[side]):
            return True
        array = _numbers(self.tapes[side].values[number])
        others = self.tapes[1 - side].values
        if any(are_arranged(_numbers(others[k]), array) for k in self.like(side, number)):
            return True
        return any(_is_repeated(array, _numbers(others[k])) for k in self._searched[1 - side].repeats_of(own)[:8])

    @functools.cached_property
    def _depending(self) -> list[set[int]]:
        """For each program, the values that depend on its inputs and constants."""
        depending = []
        for tape in self.tapes:
            numbers = set(tape.given)
            for step in tape.steps:
                if not numbers.isdisjoint(step.inputs):
                    numbers.update(step.outputs)
            depending.append(numbers)
        return depending

    def _rejoining(self, side: int, wrong: Sequence[int]) -> set[int]:
        """Values that are not explained, and from which one follows that is, and that no wrong value goes into."""
        tape = self.tapes[side]
        after_wrong = set(wrong)
        for step in tape.steps:
            if not after_wrong.isdisjoint(step.inputs):
                after_wrong.update(step.outputs)
        numbers: set[int] = set()
        parts: dict[int, list[bool]] = {}  # of a value, whether each is right

        def is_right(number: int) -> bool:
            if number in numbers or all(parts.get(number, [False])):
                return True
            return number not in after_wrong and self.fingerprint(side, number).telling and self.explained(side, number)

        for step in reversed(tape.steps):
            if self._takes_parts(side, step):
                # Some parts of a wrong value may be right by chance: rows that a wrong padding moved, say.
                right = [is_right(i) or not self.fingerprint(side, i).telling for i in step.outputs]
                parts.setdefault(step.inputs[0], []).extend(right)
            elif any(map(is_right, step.outputs)):
                numbers.update(i for i in step.inputs if not self.explained(side, i))
        return numbers | {i for i, right in parts.items() if all(right) and not self.explained(side, i)}

    def _takes_parts(self, side: int, step: Step) -> bool:
        """Whether each output of a step is a part of its input."""
        sizes = [np.size(self.tapes[side].values[i]) for i in (*step.inputs[:1], *step.outputs)]
        return step.name in _PARTS and all(size < sizes[0] for size in sizes[1:])

    def origins(self, side: int, results: Sequence[int], *, strict: bool = False) -> list[int]:
        """The steps at which a program leaves the other one on the way to some values, in order.

        Args:
            side: Which program.
            results: Values that are known to differ.
            strict: Whether values from which explained ones follow count as unexplained all the same.
        """
        tape = self.tapes[side]
        rejoining = set() if strict else self._rejoining(side, results)
        origins, seen, todo = set(), set(), list(results)
        while todo:
            number = todo.pop()
            maker = tape.makers[number]
            if maker is None or maker in seen:
                continue
            seen.add(maker)
            inputs = tape.steps[maker].inputs
            unexplained = [i for i in inputs if not self._is_right(side, i) and i not in rejoining]
            todo += unexplained
            if not unexplained:
                origins.add(maker)
        return sorted(origins)

    def _is_right(self, side: int, number: int) -> bool:
        return self.explained(side, number) or self.is_moved_input(side, number)

    def ranked(self, origins: Sequence[Sequence[int]]) -> list[list[int]]:
        """Origins of both programs, the likely ones first, else in order.

        Likely are those that take what an origin of the other program takes, and those that take constants alone.
        Others may be part of another formula, which rejoins after what differs.
        """
        taken = [{i for n in steps for i in self.tapes[side].steps[n].inputs} for side, steps in enumerate(origins)]
        return [
            sorted(steps, key=lambda n, side=side: (not self._is_likely(side, n, taken[1 - side]), n))
            for side, steps in enumerate(origins)
        ]

    def _is_likely(self, side: int, number: int, taken: set[int]) -> bool:
        inputs = [i for i in self.tapes[side].steps[number].inputs if self.fingerprint(side, i).telling]
        varying = [i for i in inputs if i in self._depending[side]]
        return not varying or any(not taken.isdisjoint(self.like(side, i)) for i in varying)

    def departures(self, side: int) -> list[int]:
        """All steps whose inputs are explained, and whose outputs are not, in order."""
        tape = self.tapes[side]
        return [
            number
            for number, step in enumerate(tape.steps)
            if not all(self._is_right(side, i) for i in step.outputs)
            and all(self._is_right(side, i) for i in step.inputs)
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
        settings += [f"{v:g}" for k, v in step.settings.items() if k.isdigit() and isinstance(v, float)]  # PyTorch's
        return f"{step.name}({', '.join([*operands, *settings])})"


def _is_repeated(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether the larger of two arrays is the smaller one several times, along one axis."""
    less, more = sorted((one, other), key=np.size)
    times = more.size // less.size
    for axis, n in enumerate(more.shape):
        if n % times:
            continue
        for split in ((times, n // times), (n // times, times)):
            parts = np.moveaxis(more.reshape(*more.shape[:axis], *split, *more.shape[axis + 1 :]), axis, 0)
            parts = parts if split[0] == times else np.moveaxis(parts, axis + 1, 0)
            if np.array_equal(parts[0], parts[-1]) and are_arranged(parts[0], less):
                return True
    return False


def _numbers(value: Any) -> np.ndarray:
    array = as_numbers(value)
    if array.size > 1 and jnp.issubdtype(array.dtype, jnp.floating) and array.min() <= _MASKED:
        return np.where(array <= _MASKED, np.array(-np.inf, array.dtype), array)
    return array


def _operand(value: Any) -> str:
    number = scalar_of(value)
    if number is not None:
        return f"{number:.6g}"
    name = getattr(value.dtype, "name", str(value.dtype))  # a random key has a dtype of JAX
    return f"{name}{list(np.shape(value))}"


def scalar_of(value: Any) -> float | None:
    """The number that an operand is, if it is one, or an array of equal numbers; None otherwise."""
    array = _numbers(value)
    if not array.size or array.dtype == bool or np.iscomplexobj(array):
        return None
    first = array.ravel()[0]
    return float(first) if array.size == 1 or bool(np.all(array == first)) else None


def is_move(step: Step) -> bool:
    """Whether a step only moves numbers, and takes the same ones whatever they are."""
    if step.name in _OTHER_MOVES:
        return True
    return _jax.only_moves(step.name) and _jax.facts_of(step.name).exact and len(step.inputs) == 1
