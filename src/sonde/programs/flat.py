"""A program as one flat list of equations, and the numbers of every value in it.

`flatten` turns a jaxpr into a `Level`: calls that only run the program inside them (jit, remat, functions with their
own derivatives) are inlined, so that one compiled program computes everything. Loops, branches and `shard_map` stay
equations of the level; whoever needs to know more flattens what is inside them, with the numbers that went in.

Values are known by slots, whole numbers: first the inputs of the level, then its constants and what equations compute.
The sites of `sonde.sow` and of modules are no equations: they give names to slots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from sonde import _jax
from sonde.core import Site, View, marker_p, operands_of, plain_p, site_p


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Equation:
    """One operation.

    Attributes:
        primitive: What it does.
        params: With which parameters.
        inputs: The slots of its operands.
        outputs: The slots of its results.
        sources: Where it was made, as JAX stores it, and then the calls around it, innermost first. A program that is
            traced once and called twice knows its own lines only.
        names: The scopes around it, outermost first.
        backward: Whether it is part of a backward pass.
        context: The settings that it was made with.
    """

    primitive: Any
    params: dict[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    sources: tuple[Any, ...]
    names: tuple[Any, ...]
    backward: bool = False
    context: Any = None

    @property
    def name(self) -> str:
        """The name of the operation."""
        prim = self.params.get("_prim")
        return self.primitive.name if prim is None else type(prim).__name__


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """A site that a value passes.

    Attributes:
        site: The site.
        view: Whether it is the value or a gradient, and its axes.
        names: The scopes around it.
        order: How many equations of the level were before it.
        again: Whether the value is computed a second time there; the site itself is elsewhere.
    """

    site: Site
    view: View
    names: tuple[Any, ...]
    order: int
    again: bool = False


class Level:
    """A flat program.

    Attributes:
        n_inputs: How many of the first slots are inputs.
        types: The type of each slot.
        constants: The values of slots that are known before the program runs.
        equations: In the order of the program.
        outputs: The slots of what it returns.
        marks: The sites that a slot passes.
        makers: The equation, by number, that computes a slot; inputs and constants have none.
    """

    def __init__(self) -> None:
        self.n_inputs = 0
        self.types: list[Any] = []
        self.constants: dict[int, Any] = {}
        self.equations: list[Equation] = []
        self.outputs: list[int] = []
        self.marks: dict[int, list[Mark]] = {}
        self.makers: dict[int, int] = {}

    def slot(self, aval: Any) -> int:
        """A new slot."""
        self.types.append(aval)
        return len(self.types) - 1

    def constant(self, value: Any, aval: Any = None) -> int:
        """A new slot for a value that is known."""
        slot = self.slot(_jax.typeof(value) if aval is None else aval)
        self.constants[slot] = value
        return slot

    def add(self, equation: Equation) -> None:
        """Adds an equation."""
        for slot in equation.outputs:
            self.makers[slot] = len(self.equations)
        self.equations.append(equation)

    def mark(self, inputs: Sequence[int], params: dict[str, Any], names: tuple[Any, ...]) -> list[int]:
        """Notes a site; returns the slots of the values that the program continues with."""
        site, view = params["site"], params["view"]
        slots = operands_of(inputs, site, view).arrays
        for slot in slots:
            self.marks.setdefault(slot, []).append(Mark(site, view, names, len(self.equations)))
        if view.role == "look":
            return []
        return [*slots, self.constant(np.int32(0))] if view.gives_token(site) else list(slots)


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known about a program from the call that runs it: the fields are those of `Equation`."""

    sources: tuple[Any, ...] = ()
    names: tuple[Any, ...] = ()
    backward: bool = False

    def at(self, eqn: _jax.Equation, jaxpr: _jax.Jaxpr) -> Surroundings:
        """What is known about the program that an equation of this program runs."""
        has_lines = not self.sources or _jax.has_own_lines(eqn.source_info, jaxpr)
        return Surroundings(
            (eqn.source_info, *self.sources) if has_lines else self.sources,
            (*self.names, *_jax.names_of(eqn)),
            self.backward or _jax.is_backward(eqn.source_info),
        )


def flatten(jaxpr: _jax.Jaxpr, around: Equation | None = None) -> Level:
    """The flat form of a closed jaxpr.

    Args:
        jaxpr: The program.
        around: The equation that runs it, if it is inside one.
    """
    level = Level()
    inner = _jax.open_jaxpr(jaxpr)
    inputs = [level.slot(v.aval) for v in inner.invars]
    level.n_inputs = len(inputs)
    surroundings = Surroundings() if around is None else Surroundings(around.sources, around.names, around.backward)
    level.outputs = _inline(level, jaxpr, inputs, surroundings)
    return level


def _inline(level: Level, jaxpr: _jax.Jaxpr, inputs: Sequence[int], around: Surroundings) -> list[int]:
    """Adds the equations of a jaxpr to a level; returns the slots of its outputs."""
    closed = _jax.close_jaxpr(jaxpr)
    inner = _jax.open_jaxpr(closed)
    slots: dict[Any, int] = dict(zip(inner.invars, inputs))
    for var, value in zip(inner.constvars, closed.consts):
        slots[var] = level.constant(value, var.aval)

    def read(atom: Any) -> int:
        return level.constant(atom.val, atom.aval) if isinstance(atom, _jax.Literal) else slots[atom]

    for eqn in inner.eqns:
        operands = [read(v) for v in eqn.invars]
        outs = _outputs_of(level, eqn, operands, around.at(eqn, inner))
        slots.update(zip(eqn.outvars, outs))
    return [read(v) for v in inner.outvars]


def _outputs_of(level: Level, eqn: _jax.Equation, operands: list[int], around: Surroundings) -> list[int]:
    primitive, params = eqn.primitive, eqn.params
    if primitive is site_p:
        return level.mark(operands, params, around.names)
    if primitive is marker_p:
        return operands[:-1]
    if primitive is plain_p:
        passed_operands = operands[: len(operands) - params["view"].gives_token(params["site"])]
        for slot in passed_operands:
            mark = Mark(params["site"], params["view"], around.names, len(level.equations), again=True)
            level.marks.setdefault(slot, []).append(mark)
        return passed_operands
    # Inlined, so that one compiled program computes the values of all levels of calls.
    program = program_inside(primitive, params, operands, [level.types[slot] for slot in operands])
    if program is not None:
        return _inline(level, *program, around)
    outputs = tuple(level.slot(v.aval) for v in eqn.outvars)
    context = getattr(eqn, "ctx", None)
    level.add(
        Equation(primitive, params, tuple(operands), outputs, around.sources, around.names, around.backward, context)
    )
    return list(outputs)


def program_inside(
    primitive: _jax.Primitive, params: dict[str, Any], operands: Sequence[int], types: Sequence[Any]
) -> tuple[Any, list[int]] | None:
    """The program that an equation does nothing but run, and its inputs; None if there is none.

    Args:
        primitive: The primitive of the equation.
        params: Its parameters.
        operands: The slots of its operands.
        types: Their types.
    """
    if primitive is lax.linear_solve_p:  # only the solver runs; the other programs are there for derivatives
        lengths = params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        last = first + lengths.solve + lengths.transpose_solve
        return params["jaxprs"].solve, [*operands[first : first + lengths.solve], *operands[last:]]
    if primitive.name in _jax.CALLS or primitive in _jax.inlined_primitives() or "_prim" in params:
        programs = _jax.sub_jaxprs(params)
    else:
        programs = [_jax.implementation_of(primitive, params, types)]
    if len(programs) != 1 or programs[0] is None or len(_jax.open_jaxpr(programs[0]).invars) != len(operands):
        return None
    return programs[0], list(operands)
