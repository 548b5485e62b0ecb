"""A program as a straight line of operations with their numbers: loops unrolled, branches taken, jitted calls entered.

A loop and a scan look alike on a tape, and a tape can be run again with other numbers in the middle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.port.program import Program

_MOST_STEPS = 50_000


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An operation that ran.

    Attributes:
        name: The primitive.
        inputs: The numbers of its inputs among the values of the tape.
        outputs: Those of its outputs.
        run: Runs it on other inputs.
        source: The line of the user's code, as `file:line`.
        scope: The named scopes around it.
        settings: Its parameters that are plain numbers.
        equation: The equation; None for what only takes rows of an array or puts them together.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    run: Callable[[Sequence[Any]], list[Any]]
    source: str = ""
    scope: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    equation: Any = None


@dataclasses.dataclass(eq=False)
class Tape:
    """The operations of one run.

    Attributes:
        steps: As they ran.
        values: The numbers; inputs and constants of the program first, in order.
        results: Which values the program returned.
        makers: For each value, the number of the step that made it; None for inputs, constants and literals.
        given: Which values are inputs and constants of the program.
    """

    steps: list[Step]
    values: list[Any]
    results: list[int]
    makers: list[int | None]
    given: list[int] = dataclasses.field(default_factory=list)

    def array(self, number: int) -> np.ndarray:
        """A value as an array of NumPy."""
        return np.asarray(self.values[number])

    def again(
        self,
        replaced: Mapping[int, Any],
        *,
        around: Callable[[Step, Sequence[Any]], list[Any]] | None = None,
    ) -> list[Any]:
        """All values as they are if some of them are replaced.

        Args:
            replaced: New values by number; the steps that made them do not run.
            around: Runs a step on its inputs in place of `Step.run`. Every step then runs; else those with new inputs
                do.
        """
        values = list(self.values)
        changed = set(replaced)
        for number, value in replaced.items():
            values[number] = value
        for step in self.steps:
            if around is None and changed.isdisjoint(step.inputs):
                continue
            inputs = [values[i] for i in step.inputs]
            for number, value in zip(step.outputs, around(step, inputs) if around else step.run(inputs)):
                if number not in replaced:
                    values[number] = value
                    changed.add(number)
        return values


def tape_of(program: Program) -> Tape:
    """Runs a program and keeps every operation."""
    tape = Tape([], list(program.values), [], [None] * len(program.values), list(range(len(program.values))))
    tape.results = _Taping(tape).run(program.jaxpr, range(len(program.values)), _NOWHERE)
    return tape


@dataclasses.dataclass(frozen=True, slots=True)
class _Where:
    """Where a program is run: the scopes around it, and the line, if its own equations do not know theirs."""

    scopes: tuple[str, ...] = ()
    line: str = ""


_NOWHERE = _Where()


class _Taping:
    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def run(self, jaxpr: Any, inputs: Sequence[int], where: _Where) -> list[int]:
        """Runs a jaxpr on values of the tape, and returns the numbers of its outputs."""
        opened, closed = _jax.open_jaxpr(jaxpr), _jax.close_jaxpr(jaxpr)
        numbers = dict(zip(opened.constvars, [self.add(x) for x in closed.consts]))
        numbers.update(zip(opened.invars, inputs))

        def read(v: Any) -> int:
            return self.add(v.val) if isinstance(v, _jax.Literal) else numbers[v]

        for eqn in opened.eqns:
            outs = self.equation(eqn, [read(v) for v in eqn.invars], where)
            numbers.update(zip(eqn.outvars, outs))
        return [read(v) for v in opened.outvars]

    def add(self, value: Any, maker: int | None = None) -> int:
        self.tape.values.append(value)
        self.tape.makers.append(maker)
        return len(self.tape.values) - 1

    def step(
        self, name: str, inputs: Sequence[int], run: Callable[[Sequence[Any]], list[Any]], **more: Any
    ) -> list[int]:
        if len(self.tape.steps) >= _MOST_STEPS:
            raise RuntimeError(f"the program runs more than {_MOST_STEPS} operations")
        number = len(self.tape.steps)
        outs = [self.add(x, number) for x in run([self.tape.values[i] for i in inputs])]
        self.tape.steps.append(Step(name, tuple(inputs), tuple(outs), run, **more))
        return outs

    def equation(self, eqn: Any, inputs: list[int], where: _Where) -> list[int]:
        name, params = eqn.primitive.name, eqn.params
        line = where.line or _jax.line_of(eqn)
        where = _Where((*where.scopes, *map(str, _jax.names_of(eqn))), where.line)
        if eqn.primitive is _jax.scan_p:
            return self.scan(params, inputs, where)
        if eqn.primitive is _jax.while_p:
            return self.while_loop(params, inputs, where)
        if eqn.primitive is _jax.cond_p:
            branches = params["branches"]
            chosen = int(np.clip(int(self.tape.array(inputs[0])), 0, len(branches) - 1))
            return self.run(branches[chosen], inputs[1:], where)
        inner = _only_program(eqn)
        if inner is not None:
            if _jax.is_of_jax(inner):  # JAX keeps one trace for all calls of its functions, with the lines of the first
                where = dataclasses.replace(where, line=line)
            return self.run(inner, inputs, where)
        settings = {k: v for k, v in params.items() if isinstance(v, int | float | bool) and k != "unique_indices"}
        return self.step(
            name,
            inputs,
            lambda values: _jax.run_equation(eqn, values),
            source=line,
            scope="/".join(where.scopes),
            settings=settings,
            equation=eqn,
        )

    def scan(self, params: dict[str, Any], inputs: list[int], where: _Where) -> list[int]:
        n_consts, n_carry = _jax.scan_sizes(params)
        consts, carry, xs = inputs[:n_consts], inputs[n_consts : n_consts + n_carry], inputs[n_consts + n_carry :]
        order = range(params["length"])
        rows: dict[int, list[int]] = {}
        for i in reversed(order) if params["reverse"] else order:
            taken = [self.step("row", [x], lambda v, i=i: [v[0][i]])[0] for x in xs]
            outs = self.run(params["jaxpr"], [*consts, *carry, *taken], where)
            carry, rows[i] = outs[:n_carry], outs[n_carry:]
        n_ys = len(_jax.open_jaxpr(params["jaxpr"]).outvars) - n_carry
        if not rows:
            types = [v.aval for v in _jax.open_jaxpr(params["jaxpr"]).outvars[n_carry:]]
            return [*carry, *[self.add(jnp.zeros((0, *t.shape), t.dtype)) for t in types]]
        stacks = [self.step("rows", [rows[i][k] for i in order], lambda v: [jnp.stack(v)])[0] for k in range(n_ys)]
        return [*carry, *stacks]

    def while_loop(self, params: dict[str, Any], inputs: list[int], where: _Where) -> list[int]:
        n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
        cond, body, carry = inputs[:n_cond], inputs[n_cond : n_cond + n_body], inputs[n_cond + n_body :]
        while True:
            (again,) = self.run(params["cond_jaxpr"], [*cond, *carry], where)
            if not bool(np.any(self.tape.array(again))):
                return carry
            carry = self.run(params["body_jaxpr"], [*body, *carry], where)


def _only_program(eqn: Any) -> Any:
    """The program of an equation that only runs it, such as a jitted call; None if there is none."""
    programs = _jax.sub_jaxprs(eqn.params)
    if len(programs) != 1 or eqn.primitive is _jax.shard_map_p:
        return None
    opened = _jax.open_jaxpr(programs[0])
    if len(opened.invars) != len(eqn.invars) or len(opened.outvars) != len(eqn.outvars):
        return None
    types = [(v.aval.shape, v.aval.dtype) for v in (*opened.invars, *opened.outvars)]
    return programs[0] if types == [(v.aval.shape, v.aval.dtype) for v in (*eqn.invars, *eqn.outvars)] else None
