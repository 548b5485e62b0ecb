"""Numbers that a program only passes on, known before it runs.

Tokens go through a program as any other number does: into jitted functions and loops, out of them as residuals, into
their backward passes. While the program around is traced they would be tracers, and which gradient belongs to which
call could only be decided when it runs. But a program does nothing with them except to hand them on, repeat them in a
loop and add a constant: so they are known, wherever the number that they began as is known.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sonde import _jax
from sonde.core.keeping import JaxprCache
from sonde.core.operands import TOKEN

# A number of the user's must come out of a function as JAX returns it: only our own are replaced.
_tokens: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()


def new_token(number: Any) -> np.ndarray:
    """A number that is known to be one of ours wherever it is met again."""
    token = np.array(number, TOKEN)
    _tokens[id(token)] = token
    return token


def is_token(value: Any) -> bool:
    """Whether a value is one of our numbers."""
    return type(value) is np.ndarray and _tokens.get(id(value)) is value


class Passed(NamedTuple):
    """An output that is an input, increased by a number and repeated by loops of these lengths, outermost first."""

    position: int
    amount: int = 0
    repeats: tuple[int, ...] = ()

    def of(self, inputs: Sequence[Any], *, ours: bool) -> Any:
        """The output, if the input is known; None otherwise.

        Args:
            inputs: All inputs.
            ours: Whether the output is one of our numbers, so that the input must have been one, too. JAX does not
                always hand on the object that it was given.
        """
        given = inputs[self.position]
        if not (isinstance(given, (np.ndarray, np.generic)) if ours else is_token(given)):
            return None
        return new_token(np.broadcast_to(given + self.amount, (*self.repeats, *np.shape(given))))


_answers = JaxprCache()


def passed_on(jaxpr: Any) -> tuple[Passed | None, ...]:
    """For each output of a jaxpr, the input that it is."""
    jaxpr = _jax.open_jaxpr(jaxpr)
    known = _answers.of(jaxpr)
    if "passed on" not in known:
        known["passed on"] = _passed_on(jaxpr)
    return known["passed on"]


Plan = list[tuple[int, Passed | np.ndarray, bool]]


def plan_of(jaxpr: Any, ours: Sequence[bool], scan: dict[str, Any] | None = None) -> Plan:
    """Which outputs of a jaxpr may be known, to be made once and used in every call.

    Args:
        jaxpr: The jaxpr.
        ours: For each output whether it is one of our numbers, which may then be a constant, too.
        scan: The parameters of the scan, if the jaxpr is the body of one.
    """
    plan: Plan = []
    found = passed_on(jaxpr) if scan is None else _of_scan(scan)
    for i, (passed, var, mine) in enumerate(zip(found, _jax.open_jaxpr(jaxpr).outvars, ours, strict=True)):
        if passed is not None:
            plan.append((i, passed, mine))
        elif mine and scan is None and isinstance(var, _jax.Literal):
            plan.append((i, new_token(var.val), mine))
    return plan


def known_outputs(outs: Sequence[Any], plan: Plan, inputs: Sequence[Any]) -> Sequence[Any]:
    """The outputs of a jaxpr that was run with these inputs, with numbers in place of those that are known."""
    if not plan:
        return outs
    outs = list(outs)
    for i, passed, ours in plan:
        number = passed.of(inputs, ours=ours) if isinstance(passed, Passed) else passed
        outs[i] = outs[i] if number is None else number
    return outs


def _of_scan(params: dict[str, Any]) -> list[Passed | None]:
    n_consts, n_carry = _jax.scan_sizes(params)
    found: list[Passed | None] = []
    for position, passed in enumerate(passed_on(params["jaxpr"])):
        if passed is None or position < n_carry or n_consts <= passed.position < n_consts + n_carry:
            found.append(None)
        elif passed.position < n_consts:
            found.append(passed._replace(repeats=(params["length"], *passed.repeats)))
        else:  # a slice of an input in every iteration: together, the input, unless something came in front of it
            found.append(None if passed.repeats else passed)
    return found


def _passed_on(jaxpr: Any) -> tuple[Passed | None, ...]:
    env = {v: Passed(i) for i, v in enumerate(jaxpr.invars) if v.aval.dtype == TOKEN}

    def read(atom: Any) -> Passed | None:
        return None if isinstance(atom, _jax.Literal) else env.get(atom)

    for eqn in jaxpr.eqns if env else ():
        inside: Sequence[Passed | None] = ()
        if eqn.primitive is _jax.jit_p or eqn.primitive is _jax.remat_p:
            inside = passed_on(eqn.params["jaxpr"])
        elif eqn.primitive is _jax.scan_p:
            inside = _of_scan(eqn.params)
        elif (amount := _jax.added_amount(eqn)) is not None:
            inside = [Passed(0, amount)]
        for var, passed in zip(eqn.outvars, inside):
            given = passed and read(eqn.invars[passed.position])
            if passed and given:
                env[var] = Passed(given.position, given.amount + passed.amount, (*passed.repeats, *given.repeats))
    return tuple(map(read, jaxpr.outvars))
