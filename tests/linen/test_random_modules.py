"""Random modules have the initial values, outputs, variables and gradients of Flax: few in each run, many thorough.

Both libraries run the same operations in the same order, so that what is computed forward is nearly always bit-equal.
Gradients are sums of many terms, which a compiler may order differently: they differ by some units in the last place of
the largest of them.
"""

from __future__ import annotations

import flax.linen as flax_nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.linen.against_flax import KEYS
from tests.linen.random_modules import everything, inputs
from tests.same_programs import names_of_outputs

from sonde import linen as sonde_nn

LIMIT = 256  # units in the last place; 40 is the most that was seen


def outcome(nn, seed, precise):
    try:
        return everything(nn, seed, precise=precise, rngs=KEYS)
    except Exception as error:
        return type(error).__name__


def forms(traced):
    leaves = jax.tree_util.tree_leaves_with_path(traced.out_info)
    return {jax.tree_util.keystr(path): (x.shape, x.dtype) for path, x in leaves}


def check(seed, *, precise):
    """Compares what both libraries do; returns whether the program ran. A program that is the same is not compiled."""
    with jax.enable_x64(precise):
        theirs, ours = (outcome(nn, seed, precise) for nn in (flax_nn, sonde_nn))
        if isinstance(theirs, str):
            assert ours == theirs
            return False
        assert not isinstance(ours, str), ours
        assert forms(ours) == forms(theirs)
        if names_of_outputs(ours) != names_of_outputs(theirs):
            x = inputs(seed, precise=precise)
            compare(ours.lower().compile()(x), theirs.lower().compile()(x), precise=precise)
    return True


def compare(ours, theirs, *, precise):
    for what in theirs:
        expected, got = (jax.tree_util.tree_leaves_with_path(both[what]) for both in (theirs, ours))
        # gradients that are zero but for rounding are measured by the others
        size = max((np.nanmax(np.abs(np.asarray(x, np.float64)), initial=0.0) for _, x in expected), default=0.0)
        unit = jnp.finfo(jnp.float64 if precise else jnp.float32).eps
        limit = 0 if what == "init" else LIMIT * unit
        for (path, a), (_, b) in zip(got, expected):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            where = f"{what}{jax.tree_util.keystr(path)}"
            np.testing.assert_allclose(a, b, rtol=limit, atol=limit * size, err_msg=where)


@pytest.mark.parametrize("seed", [2])
def test_random_modules(seed):
    assert check(seed, precise=True)


@pytest.mark.thorough
@pytest.mark.parametrize("precise", [True, False], ids=["doubles", "mixed"])
@pytest.mark.parametrize("first", range(0, 500, 50))
def test_many_random_modules(first, precise):
    ran = sum(check(seed, precise=precise) for seed in range(first, first + 50))
    assert ran >= 40
