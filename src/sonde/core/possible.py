"""Which numbers a token may be, found in the program that is being traced.

Where a branch or a loop decides, a token is known only when the program runs (`known` deals with the others). But it is
one of few numbers: a program hands tokens on, repeats them, chooses between them and adds constants. So which calls a
gradient can belong to is known from the equations that the token came by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sonde import _jax

Numbers = frozenset[int] | None  # None: any number
Read = Callable[[int], Numbers]  # the numbers that an input of an equation may be, by its position

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
    if not isinstance(token, _jax.Tracer):
        return _of_array(token)
    return _of_tracer(token, {})


def _of_array(array: Any) -> Numbers:
    if not getattr(array, "is_fully_addressable", True) or np.size(array) > 2**16:
        return None
    return _bounded(np.unique(np.asarray(array)).tolist())


def _bounded(numbers: Iterable[int]) -> Numbers:
    found = frozenset(numbers)
    return found if len(found) <= _MOST else None


def _either(all_numbers: Iterable[Numbers]) -> Numbers:
    found: frozenset[int] = frozenset()
    for numbers in all_numbers:
        if numbers is None:
            return None
        found |= numbers
    return _bounded(found)


def _of_tracer(token: Any, known: dict[int, tuple[Any, Numbers]]) -> Numbers:
    if not isinstance(token, _jax.Tracer):
        return _of_array(token)
    if id(token) not in known:
        known[id(token)] = token, None  # holds on to it, so that its id stays its own
        origin = _jax.origin_of(token)
        if isinstance(origin, _jax.MadeBy):
            inputs = origin.inputs
            found = _of_equation(
                origin.primitive, origin.params, origin.position, len(inputs), lambda i: _of_tracer(inputs[i], known)
            )
        else:
            found = None if origin is None else _of_tracer(origin, known)
        known[id(token)] = token, found
    return known[id(token)][1]


class _Inside:
    """A jaxpr, for whose inputs it is known what they may be."""

    def __init__(self, jaxpr: Any, read: Read) -> None:
        closed = _jax.close_jaxpr(jaxpr)
        self.jaxpr = _jax.open_jaxpr(jaxpr)
        self.inputs = {v: i for i, v in enumerate(self.jaxpr.invars)}
        self.consts = dict(zip(self.jaxpr.constvars, closed.consts))
        self.made_by = {v: (eqn, i) for eqn in self.jaxpr.eqns for i, v in enumerate(eqn.outvars)}
        self.read = read
        self.known: dict[Any, Numbers] = {}

    def output(self, position: int) -> Numbers:
        """What an output may be."""
        return self.of(self.jaxpr.outvars[position])

    def of(self, atom: Any) -> Numbers:
        """What a variable may be."""
        if isinstance(atom, _jax.Literal):
            return _of_array(atom.val)
        if atom in self.inputs:
            return self.read(self.inputs[atom])
        if atom in self.consts:
            return possible_numbers(self.consts[atom])
        if atom not in self.known:
            eqn, position = self.made_by[atom]
            self.known[atom] = _of_equation(
                eqn.primitive, eqn.params, position, len(eqn.invars), lambda i: self.of(eqn.invars[i])
            )
        return self.known[atom]


def _of_equation(primitive: Any, params: dict[str, Any], position: int, n_in: int, read: Read) -> Numbers:
    """What an output of an equation may be."""
    if primitive is _jax.cond_p:
        return _either(_Inside(branch, lambda i: read(i + 1)).output(position) for branch in params["branches"])
    if primitive is _jax.scan_p:
        n_consts, n_carry = _jax.scan_sizes(params)
        return _of_loop(params["jaxpr"], range(n_consts), range(n_consts, n_consts + n_carry), n_in, position, read)
    if primitive is _jax.while_p:
        n_test = params["cond_nconsts"]
        consts = range(n_test, n_test + params["body_nconsts"])
        return _of_loop(params["body_jaxpr"], consts, range(consts.stop, n_in), n_in, position, read)
    name = primitive.name
    if name == "select_n":
        return _either(map(read, range(1, n_in)))
    if name in _NOTHING:
        return frozenset({0})
    if name == "add":
        a, b = read(0), read(1)
        return None if a is None or b is None else _bounded(x + y for x in a for y in b)
    if name in _MOVES:
        positions = _MOVES[name]
        return _either(map(read, range(n_in) if positions is None else positions))
    if name in _HANDS_ON:
        return read(position)
    inside = list(_jax.sub_jaxprs(params))
    if len(inside) == 1 and len(_jax.open_jaxpr(inside[0]).invars) == n_in:  # jit, remat, custom derivatives, meshes
        return _Inside(inside[0], read).output(position)
    return None


def _of_loop(body: Any, consts: range, carry: range, n_in: int, position: int, read: Read) -> Numbers:
    """What an output of a loop may be: what is carried is what it was before the loop, or what an iteration made it.

    Args:
        body: The body: of constants, what is carried, and slices.
        consts: The positions of the constants among the operands of the loop.
        carry: Those of what is carried; slices come after it.
        n_in: How many operands there are.
        position: Which output.
        read: What the operands may be.
    """
    operands = [*consts, *carry, *range(carry.stop, n_in)]
    first, stop = len(consts), len(consts) + len(carry)
    carried: dict[int, Numbers] = {}  # as far as is known by now; more, or nothing, in the next round

    def read_inside(i: int) -> Numbers:
        if not first <= i < stop:
            return read(operands[i])
        if i not in carried:
            carried[i] = read(operands[i])
        return carried[i]

    if position < len(carry):
        read_inside(first + position)
    while True:
        inside = _Inside(body, read_inside)
        found = inside.output(position)
        before = dict(carried)
        for i in list(carried):
            carried[i] = _either([before[i], inside.output(i - first)])
        if carried == before:
            return carried[first + position] if position < len(carry) else found
