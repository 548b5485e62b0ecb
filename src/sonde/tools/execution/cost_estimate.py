"""A rough estimate of what a program costs: its operations, and the time to compile it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from sonde import _jax

_SECONDS_PER_EQUATION = 8e-4


class Effort(NamedTuple):
    """What a program costs.

    Attributes:
        operations: How many multiplications and additions there are in its matrix products, and one for every element
            that another equation computes.
        compiling: Roughly how many seconds it takes to compile.
    """

    operations: float
    compiling: float


def effort(f: Callable, *args: Any) -> Effort:
    """The effort of a call. The function is traced, not run.

    Example:
        >>> import jax.numpy as jnp
        >>> effort(lambda x: x @ x, jnp.ones((10, 10))).operations
        2000.0
    """
    operations, equations = _count(jax.make_jaxpr(f)(*args))
    return Effort(operations, max(equations, 1) * _SECONDS_PER_EQUATION)


def _count(jaxpr: Any) -> tuple[float, int]:
    operations, equations = 0.0, 0
    for eqn in _jax.open_jaxpr(jaxpr).eqns:
        inner = [_count(sub) for sub in _jax.sub_jaxprs(eqn.params)]
        times = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
        operations += times * sum(n for n, _ in inner) if inner else _operations(eqn)
        equations += 1 + sum(n for _, n in inner)
    return operations, equations


def _operations(eqn: Any) -> float:
    made = sum(math.prod(getattr(v.aval, "shape", ())) for v in eqn.outvars)
    if eqn.primitive.name != "dot_general":
        return float(made)
    (contracted, _), _ = eqn.params["dimension_numbers"]
    shape = eqn.invars[0].aval.shape
    return 2.0 * made * math.prod(shape[i] for i in contracted)
