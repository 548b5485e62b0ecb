"""Gates of choices that were made outside a loop.

A branch that runs beside its siblings gives the sites in it a gate. A loop in the branch hands it through: then the
flag of a site is known before the loop, also for an element whose loop never runs. The gate of a choice that is made in
the body is known only where the body has run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from sonde import _jax
from sonde.core.following import Question, Read

_JOINS = ("and", "broadcast_in_dim", "expand_dims", "reshape", "squeeze", "transpose", "pvary", "pcast", "reshard")


def gate_from_outside(jaxpr: Any, position: int, consts: Sequence[Any]) -> Any:
    """An output of a loop body that is nothing but constants of the loop, joined by `and`; None if it is not."""
    return _Gate().inside(jaxpr, lambda i: consts[i] if i < len(consts) else None)(position)


class _Gate(Question[Any]):
    """The array that a value is, computed again from arrays that are there."""

    def of_equation(self, made: _jax.MadeBy, read: Read[Any]) -> Any:
        """The output, if all inputs are known."""
        values = [read(i) for i in range(len(made.inputs))] if made.primitive.name in _JOINS else [None]
        return None if any(v is None for v in values) else made.primitive.bind(*values, **made.params)

    def sliced(self, answer: Any) -> Any:
        """A slice is another one in every iteration."""
        del answer

    def stacked(self, answer: Any, length: int) -> Any:
        """A constant of a loop, once for every iteration."""
        return jnp.broadcast_to(answer, (length, *jnp.shape(answer)))
