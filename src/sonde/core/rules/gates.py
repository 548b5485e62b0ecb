"""Gates of choices that were made outside a loop.

A branch that runs beside its siblings gives the sites in it a gate. A loop in the branch hands it through: then the
flag of a site is known before the loop, also for an element whose loop never runs. The gate of a choice that is made in
the body is known only where the body has run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from sonde import _jax

_JOINS = ("and", "broadcast_in_dim", "expand_dims", "reshape", "squeeze", "transpose", "pvary", "pcast", "reshard")


def gate_from_outside(jaxpr: Any, position: int, consts: Sequence[Any]) -> Any:
    """An output of a loop body that is nothing but constants of the loop, joined by `and`; None if it is not."""
    return _output(jaxpr, position, lambda i: consts[i] if i < len(consts) else None)


def _output(jaxpr: Any, position: int, read: Callable[[int], Any]) -> Any:
    jaxpr = _jax.open_jaxpr(jaxpr)
    inputs = {v: i for i, v in enumerate(jaxpr.invars)}
    made_by = {v: (eqn, i) for eqn in jaxpr.eqns for i, v in enumerate(eqn.outvars)}

    def value(atom: Any) -> Any:
        if isinstance(atom, _jax.Literal):
            return None
        if atom in inputs:
            return read(inputs[atom])
        if atom not in made_by:
            return None
        eqn, i = made_by[atom]

        def given(j: int) -> Any:
            return value(eqn.invars[j])

        if eqn.primitive is _jax.jit_p or eqn.primitive is _jax.remat_p:
            return _output(eqn.params["jaxpr"], i, given)
        if eqn.primitive is _jax.scan_p:
            n_consts, n_carry = _jax.scan_sizes(eqn.params)
            row = None
            if i >= n_carry:
                row = _output(eqn.params["jaxpr"], i, lambda j: given(j) if j < n_consts else None)
            return None if row is None else jnp.broadcast_to(row, (eqn.params["length"], *jnp.shape(row)))
        if eqn.primitive.name not in _JOINS:
            return None
        values = [value(v) for v in eqn.invars]
        return None if any(v is None for v in values) else eqn.primitive.bind(*values, **eqn.params)

    return value(jaxpr.outvars[position])
