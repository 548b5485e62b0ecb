"""Programs that compute only what their results need, in loops too.

XLA leaves out operations whose results nothing uses, but never iterations: a program that returns what the fourth of
thirty layers writes runs all thirty if they are one `scan`. Here such a loop ends after the last iteration that a
result depends on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sonde import _jax

_ALL = -1  # rows are needed to the last; otherwise their number, from the first


def only_needed(run: Callable[..., Any], *args: Any) -> Any:
    """What `run` returns for these arguments, traced and computed without what its result does not need."""
    jaxpr, shapes = jax.make_jaxpr(run, return_shape=True)(*args)
    program = _Program(jaxpr.jaxpr, jaxpr.consts, [_ALL] * len(jaxpr.jaxpr.outvars))
    return jax.tree.unflatten(jax.tree.structure(shapes), program.run(jax.tree.leaves(args)))


@dataclasses.dataclass
class _Program:
    """A program, and how many rows of its results are needed.

    Attributes:
        jaxpr: The program.
        consts: Its constants.
        of_results: For each result, how many rows are needed.
    """

    jaxpr: Any
    consts: Sequence[Any]
    of_results: Sequence[int]

    def run(self, args: Sequence[Any]) -> list[Any]:
        """The results. Rows that are not needed are zeros."""
        needed = self.needed()
        values: dict[Any, Any] = dict(zip((*self.jaxpr.constvars, *self.jaxpr.invars), (*self.consts, *args)))

        def value(atom: Any) -> Any:
            return atom.val if isinstance(atom, _jax.Literal) else values.get(atom)

        for equation in self.jaxpr.eqns:
            rows = [needed.get(var, 0) for var in equation.outvars]
            if not any(rows) and not equation.effects:
                continue
            inputs = [value(atom) for atom in equation.invars]
            if (n := _iterations(equation, rows)) is not None:
                outs = _shortened(equation, inputs, n)
            elif _holds_shorter(equation, rows):
                inner = equation.params["jaxpr"]
                with _jax.surroundings(equation.ctx, equation.source_info):
                    outs = _Program(inner.jaxpr, inner.consts, rows).run(inputs)
            else:
                outs = _jax.run_operation(
                    equation.primitive, equation.params, inputs, equation.ctx, equation.source_info
                )
            values.update(zip(equation.outvars, outs))
        return [
            value(atom) if rows else jnp.zeros(atom.aval.shape, atom.aval.dtype)
            for atom, rows in zip(self.jaxpr.outvars, self.of_results)
        ]

    def needed(self) -> dict[Any, int]:
        """For each variable that a result depends on, how many rows are needed."""
        needed: dict[Any, int] = {}

        def need(atom: Any, rows: int) -> None:
            if rows and not isinstance(atom, _jax.Literal):
                known = needed.get(atom, 0)
                needed[atom] = _ALL if _ALL in (known, rows) else max(known, rows)

        for atom, rows in zip(self.jaxpr.outvars, self.of_results):
            need(atom, rows)
        for equation in reversed(self.jaxpr.eqns):
            if any(needed.get(var, 0) for var in equation.outvars) or equation.effects:
                for atom in equation.invars:
                    need(atom, _rows_read(equation))
        return needed


def _rows_read(equation: Any) -> int:
    """How many rows of its operands an equation reads."""
    ends = equation.params["limit_indices"] if equation.primitive is lax.slice_p else ()
    return ends[0] if ends else _ALL


def _iterations(equation: Any, rows: Sequence[int]) -> int | None:
    """How many iterations of a loop are needed, given how many rows of its results are; None if all."""
    if equation.primitive is not _jax.scan_p or equation.effects or equation.params["reverse"]:
        return None
    n_carry, most = _jax.scan_sizes(equation.params)[1], max(rows, default=0)
    return None if any(rows[:n_carry]) or _ALL in rows or most >= equation.params["length"] else most


def _holds_shorter(equation: Any, rows: Sequence[int]) -> bool:
    """Whether an equation is a jitted call in which a loop may end sooner."""
    called = _jax.program_of_call(equation)
    if called is None or equation.effects:
        return False
    program = _Program(called.jaxpr, (), rows)
    needed = program.needed()
    for inner in program.jaxpr.eqns:
        of_inner = [needed.get(var, 0) for var in inner.outvars]
        if any(of_inner) and (_iterations(inner, of_inner) is not None or _holds_shorter(inner, of_inner)):
            return True
    return False


def _shortened(equation: Any, inputs: Sequence[Any], n: int) -> list[Any]:
    """The results of a scan after `n` iterations; what is scanned stays whole, so that nothing is copied."""
    n_consts, n_carry = _jax.scan_sizes(equation.params)
    consts, carry, scanned = inputs[:n_consts], inputs[n_consts : n_consts + n_carry], inputs[n_consts + n_carry :]

    def step(state: list[Any], i: Any) -> tuple[list[Any], list[Any]]:
        rows = [lax.dynamic_index_in_dim(x, i, keepdims=False) for x in scanned]
        outs = _jax.eval_jaxpr(equation.params["jaxpr"], *consts, *state, *rows)
        return outs[:n_carry], outs[n_carry:]

    last, stacked = lax.scan(step, list(carry), jnp.arange(n))
    missing = equation.params["length"] - n
    return [*last, *(jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) for x in stacked)]
