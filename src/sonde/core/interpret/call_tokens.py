"""What is known of tokens before a program runs: which number each is, or which numbers it may be.

Tokens go through a program like any other number: into jitted functions and loops, out of them as residuals, into their
backward passes. While the program around is traced they would be tracers, and which gradient belongs to which call
could only be decided when it runs. But a program only passes them on, repeats them in a loop and adds a constant. So a
token is known if the number that it started as is known (`known_outputs`).

If a branch or a loop decides, a token is known only when the program runs. But it is one of a few numbers, and the
equations that made it tell which calls a gradient can belong to (`possible_numbers`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from sonde import _jax
from sonde.core.interpret.dataflow import Dataflow, Read
from sonde.core.marks.operands import TOKEN


class _Memory(bytearray):
    """The buffer behind token arrays. Its type marks an array as a token: no integer of the user is taken for one.

    A long run has millions of tokens. Many share one memory, and each is an object that Python's garbage collector need
    not visit; a table of them, with weak references, would take most of the time.
    """

    __slots__ = ()


_MANY = 4096


class _Free(threading.local):
    """Memory for the next tokens of this thread. A number is written once, and never changed."""

    def __init__(self) -> None:
        self.next = _MANY

    def token(self, number: Any) -> np.ndarray:
        """A token, without axes."""
        at = self.next
        if at == _MANY:
            at, self.memory = 0, _Memory(TOKEN.itemsize * _MANY)
            self.numbers = np.frombuffer(self.memory, TOKEN)
        self.next = at + 1
        self.numbers[at] = number
        return np.ndarray((), TOKEN, self.memory, TOKEN.itemsize * at)


_free = _Free()


def new_token(number: Any) -> np.ndarray:
    """A number, or an array of them, that can be recognized later as one of ours."""
    shape = np.shape(number)
    return np.ndarray(shape, TOKEN, _Memory(np.asarray(number, TOKEN).tobytes())) if shape else _free.token(number)


def is_token(value: Any) -> bool:
    """Whether a value is one of our numbers."""
    return type(value) is np.ndarray and type(value.base) is _Memory


class Passed(NamedTuple):
    """An output that is an input, increased by a number and repeated by loops of these lengths, outermost first."""

    position: int
    amount: int = 0
    repeats: tuple[int, ...] = ()

    def of(self, inputs: Sequence[Any], *, ours: bool) -> Any:
        """The output, if the input is known; None otherwise.

        Args:
            inputs: All inputs.
            ours: Whether the output is one of our numbers, so that the input must have been one too. JAX does not
                always pass on the object itself.
        """
        amount_before = inputs[self.position]
        if not (isinstance(amount_before, (np.ndarray, np.generic)) if ours else is_token(amount_before)):
            return None
        number = amount_before + self.amount
        return new_token(np.broadcast_to(number, (*self.repeats, *number.shape)) if self.repeats else number)


_SLICE = -1  # among `Passed.repeats`, in the body of a loop: a slice of what follows


class _WhichInput(Dataflow[Passed]):
    """Which input of a program a value is."""

    def of_equation(self, made: _jax.MadeBy, read: Read[Passed]) -> Passed | None:
        """An input to which a number is added."""
        amount = _jax.added_amount(made)
        if amount is None or (token := read(0)) is None:
            return None
        return token._replace(amount=token.amount + amount)

    def sliced(self, answer: Passed) -> Passed:
        """A slice of an input."""
        return answer._replace(repeats=(_SLICE, *answer.repeats))

    def stacked(self, answer: Passed, length: int) -> Passed | None:
        """All slices of an input are the input; anything else is the same in every iteration."""
        if _SLICE not in answer.repeats:
            return answer._replace(repeats=(length, *answer.repeats))
        return answer._replace(repeats=answer.repeats[1:]) if answer.repeats[0] == _SLICE else None


def passed_on(jaxpr: _jax.Jaxpr, scan: dict[str, Any] | None = None) -> list[Passed | None]:
    """For each output of a jaxpr, or of the scan with these parameters and this body, which input it is."""
    question = _WhichInput()
    inside = question.inside(jaxpr, Passed)

    def of_output(i: int) -> Passed | None:
        return inside(i) if scan is None else question.follow(_jax.MadeBy(_jax.scan_p, scan, i, ()), Passed)

    outvars = _jax.open_jaxpr(jaxpr).outvars
    return [of_output(i) if getattr(v.aval, "dtype", None) == TOKEN else None for i, v in enumerate(outvars)]


Knowable = list[tuple[int, Passed | np.ndarray, bool]]


def knowable_outputs(jaxpr: _jax.Jaxpr, ours: Sequence[bool], scan: dict[str, Any] | None = None) -> Knowable:
    """Which outputs of a jaxpr may be known; found once and used in every call.

    Args:
        jaxpr: The jaxpr.
        ours: For each output whether it is one of our numbers, which may then be a constant, too.
        scan: The parameters of the scan, if the jaxpr is the body of one.
    """
    outputs: Knowable = []
    for i, (passed, var, own_input) in enumerate(
        zip(passed_on(jaxpr, scan), _jax.open_jaxpr(jaxpr).outvars, ours, strict=True)
    ):
        if passed is not None:
            outputs.append((i, passed, own_input))
        elif own_input and scan is None and isinstance(var, _jax.Literal):
            outputs.append((i, new_token(var.val), own_input))
    return outputs


def known_outputs(outs: Sequence[Any], knowable: Knowable, inputs: Sequence[Any]) -> Sequence[Any]:
    """The outputs of a jaxpr that was run with these inputs, with numbers in place of those that are known."""
    if not knowable:
        return outs
    outs = list(outs)
    for i, passed, ours in knowable:
        number = passed.of(inputs, ours=ours) if isinstance(passed, Passed) else passed
        outs[i] = outs[i] if number is None else number
    return outs


# ---------------------------------------------------------------------------------------------------------------------
# Which numbers a token may be
# ---------------------------------------------------------------------------------------------------------------------

Numbers = frozenset[int] | None  # None: any number

_MOST = 64  # how many numbers are distinguished

# Numbers in the place of the result of a branch that was not taken.
_NOTHING = ("empty", "empty2")


def possible_numbers(token: Any) -> Numbers:
    """The numbers that may be in a token, or in an array of them."""
    return _Possible().of_number(token)


def _of_array(array: _jax.AnyArray) -> Numbers:
    if not getattr(array, "is_fully_addressable", True) or np.size(array) > 2**16:
        return None
    return _bounded(np.unique(np.asarray(array)).tolist())


def _bounded(numbers: Iterable[int]) -> Numbers:
    distinct = frozenset(numbers)
    return distinct if len(distinct) <= _MOST else None


class _Possible(Dataflow[frozenset[int]]):
    """The numbers that a value may be."""

    joins = True

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[Any, Numbers]] = {}

    def of_number(self, value: Any) -> Numbers:
        """The numbers that may be in an array, or in a tracer of the program that is being traced."""
        if not isinstance(value, _jax.Tracer):
            return _of_array(value)
        if id(value) not in self._known:
            self._known[id(value)] = value, None  # keeps it alive, so that its id stays valid
            self._known[id(value)] = value, self._of_tracer(value)
        return self._known[id(value)][1]

    def _of_tracer(self, tracer: Any) -> Numbers:
        origin = _jax.origin_of(tracer)
        if not isinstance(origin, _jax.MadeBy):
            return None if origin is None else self.of_number(origin)
        return self.follow(origin, lambda i: self.of_number(origin.inputs[i]))

    def either(self, answers: Iterable[Numbers]) -> Numbers:
        """The numbers of all of them."""
        union: frozenset[int] = frozenset()
        for numbers in answers:
            if numbers is None:
                return None
            union |= numbers
        return _bounded(union)

    def of_equation(self, made: _jax.MadeBy, read: Read[frozenset[int]]) -> Numbers:
        """The possible outputs of a primitive for its possible inputs."""
        name, n_in = made.primitive.name, len(made.inputs)
        if name == "select_n":
            return self.either(map(read, range(1, n_in)))
        if name in _NOTHING:
            return frozenset({0})
        if name == "add":
            a, b = read(0), read(1)
            return None if a is None or b is None else _bounded(x + y for x in a for y in b)
        if moved := _jax.moved_operands(made.primitive, made.position, n_in):
            return self.either(map(read, moved))
        programs = _jax.sub_jaxprs(made.params)
        if len(programs) == 1 and len(_jax.open_jaxpr(programs[0]).invars) == n_in:  # custom derivatives, meshes
            return self.inside(programs[0], read)(made.position)
        return None
