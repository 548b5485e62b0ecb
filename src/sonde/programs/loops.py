"""What loops and branches are, whichever primitive: the program of an iteration, and which operand goes where."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import Array, lax

from sonde import _jax
from sonde.programs.flat import Equation


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A loop.

    Attributes:
        kind: `"scan"` or `"while"`.
        body: The program of one iteration: it takes constants, what is carried, and a row of what is scanned.
        operands: For each input of the body, the operand of the equation that it comes from.
        n_consts: How many inputs of the body are constants.
        n_carry: How many are carried.
        length: How many iterations there are; None if only running it tells.
        reverse: Whether rows are scanned from the last to the first.
        test: For a `while_loop`: the program that says whether to go on, and the operands that are its constants.
    """

    kind: str
    body: Any
    operands: list[int]
    n_consts: int
    n_carry: int
    length: int | None
    reverse: bool = False
    test: tuple[Any, list[int]] | None = None

    def row(self, iteration: int) -> int:
        """Which row of what is scanned an iteration takes."""
        return self.length - 1 - iteration if self.reverse and self.length is not None else iteration


def loop_of(equation: Equation) -> Loop | None:
    """The loop that an equation is; None if it is none."""
    params = equation.params
    everything = list(range(len(equation.inputs)))
    if equation.primitive is _jax.scan_p:
        n_consts, n_carry = _jax.scan_sizes(params)
        return Loop("scan", params["jaxpr"], everything, n_consts, n_carry, params["length"], params["reverse"])
    if equation.primitive is _jax.while_p:
        n_test, n_body = params["cond_nconsts"], params["body_nconsts"]
        n_carry = len(everything) - n_test - n_body
        test = params["cond_jaxpr"], everything[:n_test]
        return Loop("while", params["body_jaxpr"], everything[n_test:], n_body, n_carry, None, test=test)
    return None


def carried_on(again: Array, new: Sequence[Array], old: Sequence[Array]) -> list[Array]:
    """What a `while_loop` carries on after an iteration.

    Under `vmap` each example has a test of its own, and the loop runs until the last one ends. Examples that ended
    before keep what they had: JAX selects it when it compiles the loop, so no equation of the program says so.

    Args:
        again: What the test said before the iteration: one boolean, or one for each example.
        new: The results of the iteration.
        old: What was carried into it.
    """
    if not again.ndim:
        return list(new)

    def selected(new_value: Array, old_value: Array) -> Array:
        return lax.select(lax.broadcast_in_dim(again, new_value.shape, range(again.ndim)), new_value, old_value)

    return [selected(new_value, old_value) for new_value, old_value in zip(new, old)]


def branch_taken(equation: Equation, index: np.ndarray) -> int:
    """Which branch of a `cond` or `switch` runs, given its first operand: JAX takes the nearest one that there is."""
    return int(np.clip(int(index), 0, len(equation.params["branches"]) - 1))
