"""A program as a straight line of operations with their numbers: loops unrolled, branches taken, jitted calls entered.

A loop and a scan look alike on a tape, and a tape can be run again with other numbers in the middle.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core import path_under
from sonde.programs.flat import Equation, Level, flatten
from sonde.programs.loops import Loop, branch_taken, carried_on, loop_of
from sonde.programs.running import run_equation
from sonde.programs.traced import Program

_MOST_STEPS = 50_000


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An operation that ran.

    Attributes:
        name: The primitive.
        inputs: The numbers of its inputs among the values of the tape.
        outputs: Those of its outputs.
        run: Runs it on other inputs.
        lines: The lines of the user's code that led to it, innermost first, each as `file:line`.
        scope: The named scopes around it.
        site: The path of the first site after it, in the same loop and branch; `""` if there is none.
        settings: Its parameters that are plain numbers.
        equation: The equation; None for what only takes rows of an array or puts them together.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    run: Callable[[Sequence[Any]], list[Any]]
    lines: tuple[str, ...] = ()
    scope: str = ""
    site: str = ""
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    equation: Equation | None = None

    @property
    def source(self) -> str:
        """The innermost of the lines; `""` if none is known."""
        return self.lines[0] if self.lines else ""


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
        return as_numbers(self.values[number])

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


def as_numbers(value: Any) -> np.ndarray:
    """A value of a program as an array of NumPy: a random key as the numbers in it."""
    is_key = jnp.issubdtype(getattr(value, "dtype", None) or np.float32, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value)


def tape_of(program: Program) -> Tape:
    """Runs a program and keeps every operation."""
    tape = Tape([], list(program.values), [], [None] * len(program.values), list(range(len(program.values))))
    tape.results = _Unrolling(tape).run(flatten(program.jaxpr), range(len(program.values)))
    return tape


class _Unrolling:
    """Runs levels operation by operation, and writes each down."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape

    def run(self, level: Level, inputs: Sequence[int]) -> list[int]:
        """Runs a level on values of the tape, and returns the numbers of its outputs."""
        numbers = dict(enumerate(inputs))  # by slot

        def read(slot: int) -> int:
            if slot not in numbers:
                numbers[slot] = self.add(level.constants[slot])
            return numbers[slot]

        sites = _sites_after(level)
        for equation, site in zip(level.equations, sites):
            outs = self.equation(equation, [read(slot) for slot in equation.inputs], site)
            numbers.update(zip(equation.outputs, outs))
        return [read(slot) for slot in level.outputs]

    def add(self, value: Any, maker: int | None = None) -> int:
        """A new value of the tape."""
        self.tape.values.append(value)
        self.tape.makers.append(maker)
        return len(self.tape.values) - 1

    def step(
        self, name: str, inputs: Sequence[int], run: Callable[[Sequence[Any]], list[Any]], **more: Any
    ) -> list[int]:
        """Runs one operation, and writes it down."""
        if len(self.tape.steps) >= _MOST_STEPS:
            raise RuntimeError(f"the program runs more than {_MOST_STEPS} operations")
        number = len(self.tape.steps)
        outs = [self.add(x, number) for x in run([self.tape.values[i] for i in inputs])]
        self.tape.steps.append(Step(name, tuple(inputs), tuple(outs), run, **more))
        return outs

    def equation(self, equation: Equation, inputs: list[int], site: str) -> list[int]:
        """Runs an equation, and what is inside it one by one."""
        loop = loop_of(equation)
        if loop is not None:
            operands = [inputs[i] for i in loop.operands]
            if loop.test is None:
                return self.scan(equation, loop, operands)
            return self.while_loop(equation, loop, operands, [inputs[i] for i in loop.test[1]])
        if equation.primitive is _jax.cond_p:
            branch = equation.params["branches"][branch_taken(equation, self.tape.array(inputs[0]))]
            return self.run(flatten(branch, equation), inputs[1:])
        # `unique_indices` is a promise to the compiler, not a setting of the user.
        plain = {k: v for k, v in equation.params.items() if isinstance(v, int | float) and k != "unique_indices"}
        return self.step(
            equation.name,
            inputs,
            lambda values: run_equation(equation, values),
            lines=_jax.lines_of(equation.sources),
            scope="/".join(map(str, equation.names)),
            site=site,
            settings=plain,
            equation=equation,
        )

    def scan(self, equation: Equation, loop: Loop, inputs: list[int]) -> list[int]:
        """Runs the iterations of a scan."""
        first_row = loop.n_consts + loop.n_carry
        consts, carry, xs = inputs[: loop.n_consts], inputs[loop.n_consts : first_row], inputs[first_row:]
        body = flatten(loop.body, equation)
        order = range(loop.length or 0)
        place = {"lines": _jax.lines_of(equation.sources), "scope": "/".join(map(str, equation.names))}
        rows: dict[int, list[int]] = {}
        for iteration in order:
            i = loop.row(iteration)
            taken = [self.step("row", [x], lambda v, i=i: [v[0][i]], **place)[0] for x in xs]
            outs = self.run(body, [*consts, *carry, *taken])
            carry, rows[i] = outs[: loop.n_carry], outs[loop.n_carry :]
        stacked = body.outputs[loop.n_carry :]
        if not rows:
            types = [body.types[slot] for slot in stacked]
            return [*carry, *[self.add(jnp.zeros((0, *t.shape), t.dtype)) for t in types]]
        stacks = [
            self.step("rows", [rows[i][k] for i in order], lambda v: [jnp.stack(v)], **place)[0]
            for k in range(len(stacked))
        ]
        return [*carry, *stacks]

    def while_loop(self, equation: Equation, loop: Loop, inputs: list[int], tested: list[int]) -> list[int]:
        """Runs the iterations of a while loop."""
        assert loop.test is not None
        consts, carry = inputs[: loop.n_consts], inputs[loop.n_consts :]
        test, body = flatten(loop.test[0], equation), flatten(loop.body, equation)
        while True:
            (again,) = self.run(test, [*tested, *carry])
            if not bool(np.any(self.tape.array(again))):
                return carry
            carried = self.run(body, [*consts, *carry])
            carry = (
                self.step("select", [again, *carried, *carry], _carried_on) if self.tape.array(again).ndim else carried
            )


def _sites_after(level: Level) -> list[str]:
    """For each equation of a level, the path of the first site after it."""
    marks = [
        (mark.order, path_under(mark.names, "", 1) + mark.site.path)
        for marks in level.marks.values()
        for mark in marks
        if not mark.again
    ]
    marks.sort()
    orders = [order for order, _ in marks]
    after = (bisect.bisect_right(orders, number) for number in range(len(level.equations)))
    return [marks[i][1] if i < len(marks) else "" for i in after]


def _carried_on(values: Sequence[Any]) -> list[Any]:
    """`carried_on`, of the test, the new values and the old ones in one list."""
    n_carry = (len(values) - 1) // 2
    return carried_on(values[0], values[1 : n_carry + 1], values[n_carry + 1 :])
