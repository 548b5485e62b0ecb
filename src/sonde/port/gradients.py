"""The gradient of what a program returns, with respect to all floating-point arrays that go into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.programs.traced import Program, from_flat


def with_gradient(program: Program) -> Program:
    """A program that returns the gradient of a random combination of the results of another one.

    The same shapes have the same combination, so that the gradients of two programs can be compared. Its outputs are in
    the order of `differentiable(program)`.
    """
    chosen = differentiable(program)
    outs = _jax.open_jaxpr(program.jaxpr).outvars
    weights = [
        factors(i, v.aval.shape) if jnp.issubdtype(v.aval.dtype, jnp.inexact) else None for i, v in enumerate(outs)
    ]
    if not chosen:
        raise ValueError("no floating-point array goes into the program")
    if all(w is None for w in weights):
        raise ValueError("the results are not floating-point numbers")

    def gradient(*values: Any) -> list[Any]:
        def combined(*moving: Any) -> list[Any]:
            filled = list(values)
            for i, x in zip(chosen, moving):
                filled[i] = x
            return [x for x, w in zip(program(*filled), weights) if w is not None]

        made, back = jax.vjp(combined, *[values[i] for i in chosen])
        return list(back([jnp.asarray(w, x.dtype) for x, w in zip(made, [w for w in weights if w is not None])]))

    names = [*program.input_names, *[""] * len(program.constants)]
    return from_flat(gradient, program.values, names, [names[i] for i in chosen])


def factors(number: int, shape: Sequence[int]) -> np.ndarray:
    """What the elements of a result are multiplied with before they are added up.

    Factors of one size would cancel where rows are equal. These are exact in bfloat16.
    """
    random = np.random.default_rng(number)
    return random.choice([-1.0, 1.0], shape) * random.integers(64, 128, shape) / 128


def differentiable(program: Program) -> list[int]:
    """The numbers of the floating-point arrays among inputs and constants."""
    return [i for i, x in enumerate(program.values) if jnp.issubdtype(jnp.asarray(x).dtype, jnp.inexact)]
