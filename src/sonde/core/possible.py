"""Which numbers a token may be, found in the program that is being traced.

Where a branch or a loop decides, a token is known only when the program runs (`known` deals with the others). But it is
one of few numbers: a program hands tokens on, repeats them, chooses between them and adds constants. So which calls a
gradient can belong to is known from the equations that the token came by.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from sonde import _jax
from sonde.core.following import Question, Read

Numbers = frozenset[int] | None  # None: any number

_MOST = 64  # numbers that are told apart

# Primitives that put elements of their operands at other places, with the positions of those operands (None: all).
_MOVES: dict[str, tuple[int, ...] | None] = {
    "broadcast_in_dim": (0,),
    "clamp": (1,),
    "concatenate": None,
    "convert_element_type": (0,),
    "copy": (0,),
    "dynamic_slice": (0,),
    "dynamic_update_slice": (0, 1),
    "expand_dims": (0,),
    "gather": (0,),
    "max": None,
    "pad": (0, 1),
    "pbroadcast": (0,),
    "pcast": (0,),
    "pvary": (0,),
    "reduce_max": (0,),
    "reduce_precision": (0,),
    "reshape": (0,),
    "reshard": (0,),
    "rev": (0,),
    "sharding_constraint": (0,),
    "slice": (0,),
    "split": (0,),
    "squeeze": (0,),
    "stack": None,
    "stop_gradient": (0,),
    "tile": (0,),
    "transpose": (0,),
}
# Those that stand where a branch that was not taken would have put something.
_NOTHING = ("empty", "empty2")
# Those that hand each operand on as the output at its position.
_HANDS_ON = ("device_put", "opt_barrier", "optimization_barrier", "sonde_along", "sonde_mapped_while")


def possible_numbers(token: Any) -> Numbers:
    """The numbers that may be in a token, or in an array of them."""
    return _Possible().of_number(token)


def _of_array(array: Any) -> Numbers:
    if not getattr(array, "is_fully_addressable", True) or np.size(array) > 2**16:
        return None
    return _bounded(np.unique(np.asarray(array)).tolist())


def _bounded(numbers: Iterable[int]) -> Numbers:
    found = frozenset(numbers)
    return found if len(found) <= _MOST else None


class _Possible(Question[frozenset[int]]):
    """The numbers that a value may be."""

    joins = True

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[Any, Numbers]] = {}

    def of_number(self, value: Any) -> Numbers:
        """Those in an array, or in a tracer of the program that is being traced."""
        if not isinstance(value, _jax.Tracer):
            return _of_array(value)
        if id(value) not in self._known:
            self._known[id(value)] = value, None  # holds on to it, so that its id stays its own
            self._known[id(value)] = value, self._of_tracer(value)
        return self._known[id(value)][1]

    def _of_tracer(self, tracer: Any) -> Numbers:
        origin = _jax.origin_of(tracer)
        if not isinstance(origin, _jax.MadeBy):
            return None if origin is None else self.of_number(origin)
        return self.follow(origin, lambda i: self.of_number(origin.inputs[i]))

    def either(self, answers: Iterable[Numbers]) -> Numbers:
        """The numbers of all of them."""
        found: frozenset[int] = frozenset()
        for numbers in answers:
            if numbers is None:
                return None
            found |= numbers
        return _bounded(found)

    def of_equation(self, made: _jax.MadeBy, read: Read[frozenset[int]]) -> Numbers:
        """What a primitive makes of the numbers that it gets."""
        name, n_in = made.primitive.name, len(made.inputs)
        if name == "select_n":
            return self.either(map(read, range(1, n_in)))
        if name in _NOTHING:
            return frozenset({0})
        if name == "add":
            a, b = read(0), read(1)
            return None if a is None or b is None else _bounded(x + y for x in a for y in b)
        if name in _MOVES:
            positions = _MOVES[name]
            return self.either(map(read, range(n_in) if positions is None else positions))
        if name in _HANDS_ON:
            return read(made.position)
        programs = _jax.sub_jaxprs(made.params)
        if len(programs) == 1 and len(_jax.open_jaxpr(programs[0]).invars) == n_in:  # custom derivatives, meshes
            return self.inside(programs[0], read)(made.position)
        return None
