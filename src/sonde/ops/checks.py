"""Checks of the arguments of layers, with clear error messages.

JAX's own message for a wrong feature size speaks of `dot_general` and contracting dimensions. The messages here name
the argument, what was expected and what was found. The calling layer adds its class and path, see
`sonde.errors.LayerInputError`. Shapes are known while tracing, so the checks are not in the compiled program.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from sonde._array_text import describe
from sonde.errors import LayerInputError


def expect_size(x: jax.Array, *, axis: int, size: int, argument: str, meaning: str = "features") -> None:
    """Checks that an array has `size` elements along `axis`."""
    if x.ndim <= (axis if axis >= 0 else -axis - 1):
        raise LayerInputError(
            f"`{argument}` has no axis {axis}: expected {size} {meaning} along it, got {describe(x)}."
        )
    if x.shape[axis] != size:
        raise LayerInputError(
            f"`{argument}` has the wrong number of {meaning}: expected {size} along axis {axis}, "
            f"got {x.shape[axis]} in {describe(x)}."
        )


def expect_rank(x: jax.Array, *, least: int, argument: str, meaning: str) -> None:
    """Checks that an array has at least `least` axes."""
    if x.ndim < least:
        raise LayerInputError(
            f"`{argument}` has too few axes: expected at least {least} ({meaning}), got {x.ndim} in {describe(x)}."
        )


def expect_shape(x: jax.Array, shape: Sequence[int], *, argument: str, meaning: str) -> None:
    """Checks that an array has exactly this shape."""
    if tuple(x.shape) != tuple(shape):
        raise LayerInputError(
            f"`{argument}` has the wrong shape: expected {tuple(shape)} ({meaning}), got {describe(x)}."
        )


def expect_broadcastable(x: jax.Array, shape: Sequence[int], *, argument: str, meaning: str) -> None:
    """Checks that an array broadcasts to this shape without enlarging it."""
    have, want = tuple(x.shape), tuple(shape)
    fits = len(have) <= len(want) and all(n in (1, m) for n, m in zip(have[::-1], want[::-1]))
    if not fits:
        raise LayerInputError(
            f"`{argument}` has the wrong shape: expected one that broadcasts to {want} ({meaning}), got {describe(x)}."
        )


def expect_integers(x: jax.Array, *, argument: str) -> None:
    """Checks that an array holds integers."""
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise LayerInputError(f"`{argument}` must hold integers (indices), got {describe(x)}.")
