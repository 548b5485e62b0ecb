"""What the tests of the arithmetic share: random arrays, and how close two results must be."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.fixture
def draw():
    """Random arrays, the same in every run: `draw(2, 3)`, `draw(2, 3, dtype=jnp.bfloat16)`."""
    rng = np.random.default_rng(0)

    def array(*shape: int, dtype=jnp.float32, shift: float = 0.0) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape) + shift, dtype)

    return array


@pytest.fixture
def close():
    """Trees must have the same structure, shapes and dtypes, and equal values to `rtol` of their scale."""

    def check(ours, theirs, *, rtol: float | None = None) -> None:
        assert jax.tree.structure(ours) == jax.tree.structure(theirs)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
            assert a.shape == b.shape
            assert a.dtype == b.dtype, (a.dtype, b.dtype)
            half = jnp.dtype(a.dtype).itemsize == 2
            tolerance = rtol if rtol is not None else 2e-2 if half else 1e-6
            a, b = (np.asarray(x, np.float64 if not jnp.iscomplexobj(x) else np.complex128) for x in (a, b))
            finite = b[np.isfinite(b)]
            scale = np.abs(finite).max(initial=0.0)
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * scale)

    return check
