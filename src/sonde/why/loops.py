"""Loops and branches on the way back: the iteration that went wrong, the branch that was taken.

A loop is entered at the iteration in which the element became bad and stayed so to the end. One compiled program finds
it: it runs the loop and carries, for every carried value, the iteration since which the element that is asked about is
bad without a break, and what was carried into one iteration. From there the way leads to a value that the iteration
made, to the iteration before, or out of the loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from sonde import _jax
from sonde.core import LoopName, path_under, with_capture_state
from sonde.programs.callbacks import Callbacks
from sonde.programs.flat import Equation, Level, flatten
from sonde.programs.loops import Loop, branch_taken, carried_on, loop_of
from sonde.programs.running import on_host, run_equation
from sonde.why.reads import Index
from sonde.why.walk import ENTER, Around, NotFinite, Position, Question, Scene, Walk

_ALL = np.int32(2**31 - 1)
Look = Callable[[Any, Sequence[Any], Sequence[Any], dict[int, Any], Any], Any]
_ORDERED = ("float64", "float32", "float16", "bfloat16")


class _Runs:
    """Runs of one loop in one scene, by one compiled program."""

    def __init__(self, walk: Walk, scene: Scene, number: int) -> None:
        equation = scene.level.equations[number]
        self.walk, self.scene, self.number = walk, scene, number
        found = loop_of(equation)
        assert found is not None
        self.loop: Loop = found
        loop = found
        self.inputs = [scene.values[equation.inputs[i]] for i in loop.operands]
        self.tested = [scene.values[equation.inputs[i]] for i in (loop.test[1] if loop.test else [])]
        slots = [equation.inputs[i] for i in loop.operands]
        self.types = [scene.level.types[s] for s in slots]
        self.test_types = [scene.level.types[equation.inputs[i]] for i in (loop.test[1] if loop.test else [])]
        self.carry_types = self.types[loop.n_consts : loop.n_consts + loop.n_carry]
        self.body = flatten(loop.body, equation)
        self.iterations: dict[int, Scene] = {}
        self._program: Callable[..., list[Any]] | None = None

    def outside(self, given: int, index: Index) -> Position:
        """An element of an input of the body, outside of the loop."""
        return Position(self.scene, self.scene.level.equations[self.number].inputs[self.loop.operands[given]], index)

    def leave(self, inner: Scene, slot: int, index: Index) -> Position:
        """Replaced for each iteration."""
        raise NotImplementedError

    def count(self, last: int) -> int:
        """How many of the first iterations there are."""
        if self.loop.length is not None:
            return min(last, self.loop.length)
        return self._run(0, (), last, 0)[2]

    def since(self, carried: int, index: Index, last: int) -> int:
        """The iteration since which an element is as bad as at the end, if the loop ended after `last` iterations."""
        return self._run(carried, index, last, 0)[0]

    def before(self, iteration: int) -> list[Any]:
        """What is carried into an iteration."""
        return self._run(0, (), iteration + 1, iteration)[1]

    def _run(self, carried: int, index: Index, last: int, snapshot: int) -> tuple[int, list[Any], int]:
        n = self.loop.n_carry
        flat = np.zeros(n, np.int32)
        shape = self.carry_types[carried].shape if n else ()
        flat[carried : carried + 1] = np.ravel_multi_index(index, shape) if index else 0
        question = [*map(np.asarray, flat), np.int32(min(last, int(_ALL))), np.int32(snapshot)]
        types = [_jax.typeof(np.int32(0))] * len(question)
        starts_types = [_start_type(t) for t in self.carry_types]
        if self._program is None:
            self._program = self._make()
        outs = self.scene.run(
            self._program,
            [*self.tested, *self.inputs, *question],
            ([*self.test_types, *self.types, *types], [*starts_types, *self.carry_types, types[0]]),
        )
        start = on_host(outs[carried])
        if self.scene.shard is not None:
            start = self.scene.shard.local(start, starts_types[carried])
        return int(start), list(outs[n:-1]), int(on_host(outs[-1]).reshape(-1)[0])

    def _make(self) -> Callable[..., list[Any]]:
        question, carry_types = self.walk.question, self.carry_types
        n_test, n_in = len(self.tested), len(self.inputs)

        def bad(value: Any, flat: Any) -> Any:
            if not jnp.issubdtype(value.dtype, jnp.inexact) or not value.size:
                return jnp.int32(0)
            element = lax.dynamic_index_in_dim(value.reshape(-1), flat, keepdims=False)
            return jnp.asarray(question.severity(element, jnp), jnp.int32)

        def program(*values: Any) -> list[Any]:
            inputs, asked = values[: n_test + n_in], values[n_test + n_in :]
            *flat, last, snapshot = asked
            carry = self.carried(inputs)

            def look(number: Any, now: Sequence[Any], new: Sequence[Any], env: Any, seen: Any) -> Any:
                starts, severities, kept = seen
                kept = [jnp.where(number == snapshot, a, b) if _is_plain(a) else a for a, b in zip(now, kept)]
                found = [_varying(bad(x, f), t) for x, f, t in zip(new, flat, carry_types)]
                starts = [
                    jnp.where((b == s) & (b > 0), a, _varying(number, t))
                    for a, b, s, t in zip(starts, found, severities, carry_types)
                ]
                return starts, found, kept

            severities = [_varying(bad(x, f), t) for x, f, t in zip(carry, flat, carry_types)]
            zeros = [_varying(jnp.int32(0), t) for t in carry_types]
            number, (starts, _, kept) = self.iterate(inputs, last, (zeros, severities, carry), look)
            return [*starts, *kept, number]

        return program

    def carried(self, inputs: Sequence[Any]) -> list[Any]:
        """What is carried into the first iteration, given the values of `tested` and `inputs`."""
        first = len(self.tested) + self.loop.n_consts
        return list(inputs[first : first + self.loop.n_carry])

    def iterate(self, inputs: Sequence[Any], last: Any, seen: Any, look: Look) -> tuple[Any, Any]:
        """Runs the loop as part of a program, at most `last` iterations; returns their number, and what was seen.

        Args:
            inputs: The values of `tested` and `inputs`.
            last: After how many iterations to stop.
            seen: What `look` is given first.
            look: Is called with the number of an iteration, what is carried into it and out of it, all its values by
                slot, and what was seen before; returns what is seen now.
        """
        loop, n_test, n_in = self.loop, len(self.tested), len(inputs)
        tested, consts = inputs[:n_test], inputs[n_test : n_test + loop.n_consts]
        rows = inputs[n_test + loop.n_consts + loop.n_carry : n_in]
        test = None if loop.test is None else _runnable(loop.test[0], self.walk.callbacks)

        def going_on(state: Any) -> Any:
            number, now, _ = state
            more = number < last
            return more & (number < loop.length if test is None else jnp.any(test(*tested, *now)[0]))

        def step(state: Any) -> Any:
            number, now, seen = state
            position = loop.length - 1 - number if loop.reverse and loop.length is not None else number
            row = [lax.dynamic_index_in_dim(x, position, keepdims=False) for x in rows]
            env = {**self.body.constants, **dict(enumerate((*consts, *now, *row)))}
            _run_into(env, self.body, self.walk.callbacks)
            new = [env[slot] for slot in self.body.outputs[: loop.n_carry]]
            if test is not None:
                new = carried_on(test(*tested, *now)[0], new, now)
            return number + 1, new, look(number, now, new, env, seen)

        number, _, seen = lax.while_loop(going_on, step, (jnp.int32(0), self.carried(inputs), seen))
        return number, seen


def made_bad_inside(walk: Walk, scene: Scene, number: int) -> Iterator[Position]:
    """The values inside a loop that are worse than all that they are computed from, by iteration and program order.

    Of each equation the first iteration is looked at. Loops inside the loop are not entered.
    """
    runs = _runs_of(walk, scene, number)
    if scene.shard is not None:
        return
    numeric = _numeric_equations(runs.body)
    if not numeric:
        return

    def look(number: Any, now: Sequence[Any], new: Sequence[Any], env: Any, firsts: Any) -> Any:
        return jnp.where(_made_worse(walk.question, numeric, env) & (firsts < 0), number, firsts)

    def program(*values: Any) -> list[Any]:
        return [runs.iterate(values, _ALL, jnp.full(len(numeric), -1, jnp.int32), look)[1]]

    firsts = on_host(scene.run(program, [*runs.tested, *runs.inputs], ((), ()))[0])
    for iteration, which in sorted((int(first), i) for i, first in enumerate(firsts) if first >= 0):
        inside = _at_iteration(runs, iteration, 0, ()).scene
        for slot in numeric[which].outputs:
            yield from (Position(inside, slot, index) for index in walk.worst(inside, slot))


def makes_bad(walk: Walk, scene: Scene, callbacks: Callbacks) -> bool:
    """Whether anything in a scene, in its loops and branches too, is worse than what it is computed from.

    One compiled program tells, in which everything is looked at while it runs. A NaN that was there before counts, and
    so does a program that cannot be looked into.

    Args:
        walk: The walk, with its question.
        scene: The scene.
        callbacks: For functions of the host that the program calls.
    """
    levels = [scene.level]
    while levels:
        level = levels.pop()
        if any(walk.severity(on_host(x)).max(initial=0) > 1 for x in level.constants.values()):
            return True
        for equation in level.equations:
            programs = _jax.sub_jaxprs(equation.params)
            if programs and loop_of(equation) is None and equation.name != "cond":
                return True
            levels += [flatten(program, equation) for program in programs]
    inputs = scene.values.many(range(scene.level.n_inputs))
    if any(walk.severity(on_host(x)).max(initial=0) > 1 for x in inputs):
        return True

    def program(*values: Any) -> list[Any]:
        return [_run_looking(walk.question, scene.level, values, callbacks)[0]]

    return bool(on_host(scene.run(program, inputs, ((), ()))[0]))


def _run_looking(
    question: Question, level: Level, inputs: Sequence[Any], callbacks: Callbacks
) -> tuple[Any, list[Any]]:
    """Whether an equation of a level makes a value worse, and the results of the level."""
    env = {**level.constants, **dict(enumerate(inputs))}
    flags = [jnp.bool_(False)]
    for equation in level.equations:
        operands = [env[slot] for slot in equation.inputs]
        loop = loop_of(equation)
        if loop is not None:
            flag, results = _loop_looking(question, loop, equation, operands, callbacks)
        elif equation.name == "cond":
            branches = [flatten(branch, equation) for branch in equation.params["branches"]]
            runs = [lambda *xs, branch=branch: _run_looking(question, branch, xs, callbacks) for branch in branches]
            flag, results = lax.switch(operands[0], runs, *operands[1:])
        else:
            flag, results = flags[0], run_equation(equation, operands, callbacks)
        flags.append(flag)
        env.update(zip(equation.outputs, results))
    numeric = _numeric_equations(level)
    flags += [_made_worse(question, numeric, env).any()] if numeric else []
    return functools.reduce(jnp.logical_or, flags), [env[slot] for slot in level.outputs]


def _loop_looking(
    question: Question, loop: Loop, equation: Equation, operands: Sequence[Any], callbacks: Callbacks
) -> tuple[Any, list[Any]]:
    """The same for a loop."""
    body = flatten(loop.body, equation)
    inputs = [operands[i] for i in loop.operands]
    first_row = loop.n_consts + loop.n_carry
    consts, carry, rows = inputs[: loop.n_consts], inputs[loop.n_consts : first_row], inputs[first_row:]

    def iterate(state: Any, row: Any) -> tuple[Any, list[Any]]:
        flag, now = state
        new_flag, results = _run_looking(question, body, [*consts, *now, *row], callbacks)
        new = results[: loop.n_carry]
        if test is not None:
            new = carried_on(test(*tested, *now)[0], new, now)
        return (flag | new_flag, new), results[loop.n_carry :]

    test = None if loop.test is None else _runnable(loop.test[0], callbacks)
    tested = [operands[i] for i in loop.test[1]] if loop.test else []
    start = jnp.bool_(False), list(carry)
    if test is None:
        (flag, carry), made = lax.scan(iterate, start, rows, length=loop.length, reverse=loop.reverse)
        return flag, [*carry, *made]

    def going_on(state: Any) -> Any:
        return jnp.any(test(*tested, *state[1])[0])

    return lax.while_loop(going_on, lambda state: iterate(state, [])[0], start)


def _numeric_equations(level: Level) -> list[Equation]:
    """The equations of a level with results that may be NaN or Inf."""
    return [
        equation
        for equation in level.equations
        if any(jnp.issubdtype(getattr(level.types[slot], "dtype", np.int32), jnp.inexact) for slot in equation.outputs)
    ]


def _made_worse(question: Question, equations: Sequence[Equation], env: dict[int, Any]) -> Any:
    """Which equations have a result that is worse than all operands.

    There is one number for each value, and one comparison for all equations at once: the program must compile soon.
    """
    slots = list(dict.fromkeys(slot for equation in equations for slot in (*equation.outputs, *equation.inputs)))
    position_of = {slot: i for i, slot in enumerate(slots)}
    made_by = _padded([[position_of[slot] for slot in equation.outputs] for equation in equations], len(slots))
    made_from = _padded([[position_of[slot] for slot in equation.inputs] for equation in equations], len(slots))
    severities = jnp.append(_severities(question, [env[slot] for slot in slots]), 0)  # what pads is fine
    return severities[made_by].max(1) > severities[made_from].max(1)


def _severities(question: Question, values: Sequence[Any]) -> Any:
    """How bad the worst element of each of some values is."""
    wide = jnp.zeros(()).dtype
    worst = []
    for value in map(jnp.asarray, values):
        if not _is_plain(value) or not jnp.issubdtype(value.dtype, jnp.inexact) or not value.size:
            worst.append(jnp.zeros((), wide))
        elif isinstance(question, NotFinite) and value.dtype.name in _ORDERED:
            # The largest absolute value is NaN if any element is: one operation instead of several.
            worst.append(lax.reduce_max(lax.abs(value), tuple(range(value.ndim))).astype(wide))
        else:
            most = jnp.max(question.severity(value, jnp))
            stands_for = jnp.array([0, np.inf, np.nan], wide)[most] if isinstance(question, NotFinite) else most
            worst.append(stands_for.astype(wide))
    stacked = jnp.stack(worst)
    severities = question.severity(stacked, jnp) if isinstance(question, NotFinite) else stacked
    return jnp.asarray(severities, jnp.int32)


def _padded(rows: Sequence[Sequence[int]], filler: int) -> np.ndarray:
    """Lists of whole numbers as one array."""
    width = max(1, *map(len, rows))
    return np.array([[*row, *[filler] * (width - len(row))] for row in rows], np.int32)


def _is_plain(value: Any) -> bool:
    return not isinstance(getattr(value, "dtype", None), _jax.ExtendedDType)


def _varying(value: Any, aval: Any) -> Any:
    axes = _jax.varying_axes_of_type(aval)
    return _jax.varying_over(value, axes) if axes else value


def _start_type(aval: Any) -> Any:
    """The type of a whole number that varies over a mesh as a carried value does."""
    return aval.update(shape=(), dtype=np.dtype("int32"), weak_type=False) if hasattr(aval, "update") else aval


def _runnable(jaxpr: Any, callbacks: Any) -> Callable[..., list[Any]]:
    """A program as a function without sites, and with functions of the host that do not raise."""
    level = flatten(jaxpr)

    def run(*values: Any) -> list[Any]:
        env = {**level.constants, **dict(enumerate(values))}
        _run_into(env, level, callbacks)
        return [env[slot] for slot in level.outputs]

    return run


def _run_into(env: dict[int, Any], level: Level, callbacks: Any) -> None:
    """Runs the equations of a level on values by slot, and adds their results."""
    for equation in level.equations:
        operands = [env[slot] for slot in equation.inputs]
        env.update(zip(equation.outputs, run_equation(equation, operands, callbacks)))


def enter_loop(walk: Walk, scene: Scene, number: int, output: int, index: Index) -> Position:
    """The way back into a loop, at the iteration in which the element became bad."""
    runs = _runs_of(walk, scene, number)
    loop = runs.loop
    if output >= loop.n_carry:
        return _at_iteration(runs, loop.row(index[0]), output, index[1:])
    total = int(_ALL) if loop.length is None else loop.length
    return _carried(runs, total, output, index)


def _carried(runs: _Runs, last: int, output: int, index: Index) -> Position:
    """Where an element comes from that is carried out of the first `last` iterations."""
    loop = runs.loop
    if not last or not runs.count(last):
        return runs.outside(loop.n_consts + output, index)
    return _at_iteration(runs, runs.since(output, index, last), output, index)


def _at_iteration(runs: _Runs, iteration: int, output: int, index: Index) -> Position:
    scene, loop = runs.scene, runs.loop
    inside = runs.iterations.get(iteration)
    if inside is None:
        inside = runs.iterations[iteration] = _iteration(runs, iteration)

        def leave(inner: Scene, slot: int, index: Index) -> Position:
            there = runs if inner.shard == scene.shard else _runs_of(runs.walk, scene.at(inner.shard), runs.number)
            if slot < loop.n_consts:
                return there.outside(slot, index)
            if slot >= loop.n_consts + loop.n_carry:
                return there.outside(slot, (loop.row(iteration), *index))
            return _carried(there, iteration, slot - loop.n_consts, index)

        inside.leave = leave
    return Position(inside, inside.level.outputs[output], index)


def _runs_of(walk: Walk, scene: Scene, number: int) -> _Runs:
    known: Any = scene.entered.get((number, walk))  # what the runs look for depends on the question
    if known is None:
        known = scene.entered[number, walk] = _Runs(walk, scene, number)
    return known


def _iteration(runs: _Runs, iteration: int) -> Scene:
    """The scene of one iteration."""
    scene, loop = runs.scene, runs.loop
    equation = scene.level.equations[runs.number]
    carry = runs.before(iteration)
    consts, rows = runs.inputs[: loop.n_consts], runs.inputs[loop.n_consts + loop.n_carry :]
    axis = 0 if scene.shard is None else 1  # inside a shard_map the first axis of a value is over shards
    picked = [_row_of(x, loop.row(iteration), axis) for x in rows]
    shown = iteration
    if equation.backward and loop.length is not None:  # the backward pass of a loop counts as the loop does
        shown = loop.length - 1 - iteration
    name = _loop_name(equation.names)
    if any(a.name == name for a in scene.around):  # the scope named a loop around this one
        name = None
    around = Around(loop.kind, shown, name)
    return scene.inside(runs.body, [*consts, *carry, *picked], runs.number, runs.leave, around)


def _row_of(value: Any, row: int, axis: int) -> Any:
    with with_capture_state(None):
        return value[(slice(None),) * axis + (row,)]


def _loop_name(names: tuple[Any, ...]) -> str | None:
    """The path of the scope that names a loop, if the innermost scope that does so is not used up."""
    named = [i for i, name in enumerate(names) if isinstance(name, LoopName)]
    return path_under(names[: named[-1] + 1], "", 1).rstrip("/") if named else None


def enter_branch(walk: Walk, scene: Scene, number: int, output: int, index: Index) -> Position:
    """The way back into the branch of a `cond` or `switch` that was taken."""
    del walk
    equation = scene.level.equations[number]
    chosen = branch_taken(equation, scene.host(equation.inputs[0]))
    inside = scene.entered.get((number, chosen))
    if inside is None:

        def leave(inner: Scene, slot: int, index: Index) -> Position:
            return Position(scene.at(inner.shard), equation.inputs[1 + slot], index)

        level = flatten(equation.params["branches"][chosen], equation)
        operands = scene.values.many(equation.inputs[1:])
        inside = scene.entered[number, chosen] = scene.inside(level, operands, number, leave, Around("cond", chosen))
    return Position(inside, inside.level.outputs[output], index)


ENTER["scan"] = ENTER["while"] = enter_loop
ENTER["cond"] = enter_branch
