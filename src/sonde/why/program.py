"""A program as one flat list of equations, and the numbers of every value in it.

`flatten` turns a jaxpr into a `Level`: calls that only run the program inside them (jit, remat, functions with their
own derivatives) are inlined, so that one compiled program computes everything. Loops, branches and `shard_map` stay
equations of the level; whoever needs to know more flattens what is inside them, with the numbers that went in.

Values are known by slots, whole numbers: first the inputs of the level, then its constants and what equations compute.
The sites of `sonde.sow` and of modules are no equations: they give names to slots.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from sonde import _jax
from sonde.core import Site, View, marker_p, operands_of, plain_p, site_p, with_capture_state
from sonde.why.callbacks import Callbacks

# Calls that run the one program among their parameters, with their own operands, and return what it returns.
INLINED = frozenset(
    [
        "jit",
        "pjit",
        "closed_call",
        "core_call",
        "remat",
        "remat2",
        "checkpoint",
        "custom_jvp_call",
        "custom_vjp_call",
        "custom_vjp_call_jaxpr",
        "custom_vmap_call",
    ]
)
_MOST_BYTES = 2**30  # values of a level that are kept at once
# The search wants its answer soon and runs each program a few times: XLA need not optimize it.
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


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

    def at(self, eqn: Any, jaxpr: Any) -> Surroundings:
        """The same for an equation of the program."""
        has_lines = not self.sources or _jax.has_own_lines(eqn.source_info, jaxpr)
        return Surroundings(
            (eqn.source_info, *self.sources) if has_lines else self.sources,
            (*self.names, *_jax.names_of(eqn)),
            self.backward or _jax.is_backward(eqn.source_info),
        )


def flatten(jaxpr: Any, around: Equation | None = None) -> Level:
    """The flat form of a closed jaxpr.

    Args:
        jaxpr: The program.
        around: The equation that runs it, if it is inside one.
    """
    level = Level()
    inner = _jax.open_jaxpr(jaxpr)
    inputs = [level.slot(v.aval) for v in inner.invars]
    level.n_inputs = len(inputs)
    known = Surroundings() if around is None else Surroundings(around.sources, around.names, around.backward)
    level.outputs = _inline(level, jaxpr, inputs, known)
    return level


def _inline(level: Level, jaxpr: Any, inputs: Sequence[int], around: Surroundings) -> list[int]:
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


def _outputs_of(level: Level, eqn: Any, operands: list[int], around: Surroundings) -> list[int]:
    primitive, params = eqn.primitive, eqn.params
    if primitive is site_p:
        return level.mark(operands, params, around.names)
    if primitive is marker_p:
        return operands[:-1]
    if primitive is plain_p:
        kept = operands[: len(operands) - params["view"].gives_token(params["site"])]
        for slot in kept:
            mark = Mark(params["site"], params["view"], around.names, len(level.equations), again=True)
            level.marks.setdefault(slot, []).append(mark)
        return kept
    program = _program_inside(primitive, params, operands)
    if program is not None:
        return _inline(level, *program, around)
    outputs = tuple(level.slot(v.aval) for v in eqn.outvars)
    context = getattr(eqn, "ctx", None)
    level.add(
        Equation(primitive, params, tuple(operands), outputs, around.sources, around.names, around.backward, context)
    )
    return list(outputs)


def _program_inside(primitive: Any, params: dict[str, Any], operands: list[int]) -> tuple[Any, list[int]] | None:
    """The program that an equation does nothing but run, and its inputs; None if there is none."""
    if primitive is lax.linear_solve_p:  # only the solver runs; the other programs are there for derivatives
        lengths = params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        last = first + lengths.solve + lengths.transpose_solve
        return params["jaxprs"].solve, [*operands[first : first + lengths.solve], *operands[last:]]
    if primitive.name not in INLINED and primitive not in _jax.inlined_primitives() and "_prim" not in params:
        return None
    programs = _jax.sub_jaxprs(params)
    if len(programs) != 1 or len(_jax.open_jaxpr(programs[0]).invars) != len(operands):
        return None
    return programs[0], operands


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


def compiled(program: Callable[..., list[Any]]) -> Any:
    """A compiled function, with little optimization."""
    return jax.jit(program, compiler_options=dict(_QUICK))


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
        self._kept: dict[int, Any] = {**dict(enumerate(inputs)), **level.constants}
        self._passing: dict[int, Any] = {}
        self._segments = _segments(level, most_bytes)
        self._done = 0
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
        known = self._host.get(slot)
        if known is None:
            known = self._host[slot] = on_host(self[slot])
        return known

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
    start: int
    stop: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    needed_later: tuple[int, ...]


def _segments(level: Level, most_bytes: int) -> list[_Segment]:
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
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        value = value.addressable_data(0)
    return np.asarray(value)
