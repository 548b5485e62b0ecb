"""Where an array comes from: the arrays it was made from by changes that keep its role, such as a cast.

A weight that is cast, masked, scaled, updated by an optimizer or carried by a loop is still that weight. In a program
that is being traced, equations say what a tracer was computed from, and the description of the call says which array an
argument is (`_jax.TracedArguments`). Outside of tracing, arrays have no such history: while a capture looks into a
model, results computed from its arrays are noted (`Changed`), by weak references.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from sonde import _jax
from sonde.core import ByIdentity

_STEPS = 200  # how many equations are followed for one array


def _moves(primitive: _jax.Primitive, params: dict[str, Any], inputs: Sequence[Any]) -> bool:
    """Whether a primitive only moves elements of its arrays."""
    if primitive.name == "broadcast_in_dim":  # for axes of one element
        return math.prod(params["shape"]) == inputs[0].size
    if primitive is _jax.jit_p:
        eqns = [
            eqn for eqn in _jax.open_jaxpr(params["jaxpr"]).eqns if any(getattr(v.aval, "ndim", 0) for v in eqn.outvars)
        ]
        return all(_moves(e.primitive, e.params, [var.aval for var in e.invars]) for e in eqns)
    return _jax.only_moves(primitive)


def changed_inputs(primitive: _jax.Primitive, params: dict[str, Any], position: int, n_inputs: int) -> Iterable[int]:
    """The inputs, by number, of which an output of a primitive is a changed form."""
    # A weight that is computed in another way, such as by a matrix product, is a new one.
    if _jax.facts_of(primitive).keeps_role:
        return range(n_inputs)
    if primitive is _jax.scan_p:
        n_consts, n_carry = _jax.scan_sizes(params)
        return [n_consts + position] if position < n_carry else []
    if primitive is _jax.while_p:
        return [params["cond_nconsts"] + params["body_nconsts"] + position]
    if primitive is _jax.cond_p:
        return sorted({1 + i for branch in params["branches"] for i in _changed_inputs_of(branch)[position]})
    inner = [*_jax.sub_jaxprs(params)]
    if len(inner) == 1:
        jaxpr = _jax.open_jaxpr(inner[0])
        if len(jaxpr.invars) == n_inputs and position < len(jaxpr.outvars):
            return _changed_inputs_of(inner[0])[position]
    return []


def _changed_inputs_of(jaxpr: _jax.Jaxpr) -> list[frozenset[int]]:
    """For every output of a program, the inputs of which it is a changed form."""
    return _of_jaxprs.of(_jax.open_jaxpr(jaxpr))


def _find_changed_inputs(jaxpr: _jax.Jaxpr) -> list[frozenset[int]]:
    inputs_behind: dict[Any, frozenset[int]] = {var: frozenset({i}) for i, var in enumerate(jaxpr.invars)}
    nothing = frozenset[int]()

    def look_up(var: Any) -> frozenset[int]:
        return nothing if isinstance(var, _jax.Literal) else inputs_behind.get(var, nothing)

    for eqn in jaxpr.eqns:
        if not any(map(look_up, eqn.invars)):  # most equations of a model compute with activations alone
            continue
        for position, var in enumerate(eqn.outvars):
            if not getattr(var.aval, "ndim", 0):
                continue
            inputs = changed_inputs(eqn.primitive, eqn.params, position, len(eqn.invars))
            sources_of_inputs = [look_up(eqn.invars[k]) for k in inputs if getattr(eqn.invars[k].aval, "ndim", 0)]
            if made := nothing.union(*sources_of_inputs):
                inputs_behind[var] = made
    return [look_up(var) for var in jaxpr.outvars]


_of_jaxprs = ByIdentity(_find_changed_inputs)


class Changed:
    """The arrays outside traced programs that are changed forms of some arrays, and the latter.

    Attributes:
        shapes: The shapes of the arrays. JAX calls a compiled function without notice if it was called with the same
            shapes before. So it must be known which calls to check every time: those that get an array of such a shape
            and return one, or move its elements.
    """

    __slots__ = ("_all_shapes", "_ends", "_innermost", "_is_change", "shapes")

    def __init__(self, arrays: Iterable[Any] = (), trace_around: _jax.Trace | None = None) -> None:
        self._innermost = trace_around or _jax.current_trace()
        self._ends = ByIdentity[frozenset[int]]()
        self._all_shapes: set[tuple[int, ...]] = set()  # including those of arrays whose elements were moved
        self._is_change: dict[Any, bool] = {}
        for array in arrays:
            if isinstance(array, jax.Array) and not isinstance(array, _jax.Tracer) and np.ndim(array):
                self._all_shapes.add(np.shape(array))
                self._note(array, frozenset({id(array)}))
        self.shapes = frozenset(self._all_shapes)

    @property
    def around(self) -> list[Any]:
        """The traces that were active when it was made."""
        return _jax.traces_around(self._innermost)

    def _note(self, array: _jax.AnyArray, ends: frozenset[int]) -> None:
        if _jax.is_followed(array):
            self._ends.set(array, ends)

    def ends(self, array: _jax.AnyArray) -> frozenset[int]:
        """The arrays of which an array is a changed form, by identity; empty if there are none."""
        return self._ends.get(array) or frozenset()

    def can_be_change(self, params: dict[str, Any]) -> bool:
        """Whether, by its shapes, a jitted call may return a changed form of one of these arrays."""
        jaxpr = params["jaxpr"]
        if not self.shapes:
            return False
        may_change = self._is_change.get(jaxpr)
        if may_change is None:
            # Asked at every jitted call, and found once for each program.
            open_jaxpr = _jax.open_jaxpr(jaxpr)
            outs = [
                i for i, var in enumerate(open_jaxpr.outvars) if getattr(var.aval, "shape", None) in self._all_shapes
            ]
            if _moves(_jax.jit_p, params, ()):
                outs = range(len(open_jaxpr.outvars))
            inputs = _changed_inputs_of(jaxpr) if outs else []
            may_change = any(open_jaxpr.invars[k].aval.shape in self._all_shapes for i in outs for k in inputs[i])
            self._is_change[jaxpr] = may_change
        return may_change

    def note(self, primitive: _jax.Primitive, params: dict[str, Any], inputs: Sequence[Any], outputs: Any) -> None:
        """Notes what a primitive has computed."""
        if not any(map(self._ends.get, inputs)):
            return
        moves = _moves(primitive, params, inputs)
        for position, out in enumerate(outputs if primitive.multiple_results else (outputs,)):
            is_followed = moves or np.shape(out) in self._all_shapes
            if isinstance(out, _jax.Tracer) or not np.ndim(out) or not is_followed or self.ends(out):
                continue
            changed_operands = [inputs[i] for i in changed_inputs(primitive, params, position, len(inputs))]
            if ends := frozenset[int]().union(*[self.ends(x) for x in changed_operands]):
                self._note(out, ends)
                if np.shape(out) not in self._all_shapes:
                    self._all_shapes.add(np.shape(out))
                    self._is_change.clear()


@dataclasses.dataclass(slots=True)
class Source:
    """Where an array comes from.

    Attributes:
        ends: The arrays outside, by identity.
        values: The same, or what they were changed to, by weak references.
        numbers: The arguments of programs along the way: for the description of each call, by identity, a number.
        is_lost: Whether the search ends at an argument that is not known.
    """

    ends: set[int]
    numbers: dict[int, int]
    values: list[weakref.ref[Any]]
    is_lost: bool = False


def joined(sources: Sequence[Source]) -> Source:
    """The combined source of an array made from several; empty means unknown."""
    ends = set[int]().union(*[source.ends for source in sources])
    is_lost = not sources or any(source.is_lost for source in sources)
    return Source(ends, {}, [value for source in sources for value in source.values], is_lost)


class Sources:
    """Finds where arrays come from.

    Args:
        changed: What is known of arrays outside traced programs.
    """

    def __init__(self, changed: Changed) -> None:
        self._changed = changed
        self._arguments = _jax.TracedArguments(changed.around)
        self._kept: list[Any] = []  # the id of a deleted object could be reused

    def of(self, value: Any) -> Source:
        """Where an array comes from."""
        source = Source(set(), {}, [])
        todo = [value]
        # After so many steps the search ends, and what it has not reached is unknown.
        for _ in range(_STEPS):
            if not todo:
                break
            value = todo.pop()
            self._kept.append(value)
            argument = self._arguments.find(value)
            if argument is not None:
                description, number, value = argument
                source.numbers.setdefault(id(description), number)
                if value is None:
                    source.is_lost = True
                else:
                    todo.append(value)
                continue
            before = _jax.origin_of(value) if isinstance(value, _jax.Tracer) else None
            if isinstance(before, _jax.MadeBy):
                of = changed_inputs(before.primitive, before.params, before.position, len(before.inputs))
                inputs = [before.inputs[i] for i in of if np.ndim(before.inputs[i])]
                todo += inputs
                if not inputs:
                    source.ends.add(id(value))
                    source.values.append(weakref.ref(value))
            elif before is not None:
                todo.append(before)
            else:
                source.ends |= self._changed.ends(value) or {id(value)}
                if _jax.is_followed(value):
                    source.values.append(weakref.ref(value))
        return source
