"""Whether a random program does the same with Flax and with Sonde.

Both libraries run the same operations in the same order, so that what is computed forward is nearly always bit-equal.
Gradients are sums of many terms, which a compiler may order differently: they differ by some units in the last place of
the largest of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tests.same_programs import names_of_outputs

LIMIT = 256  # units in the last place; 40 is the most that was seen
# By default XLA leaves out roundings to bfloat16 where it fuses operations, which depends on the whole program.
_EXACT = {"xla_allow_excess_precision": False}


def check(program: Callable[[Any], Any], theirs: Any, ours: Any, x: Any, *, precise: bool) -> bool:
    """Compares what both libraries do; returns whether the program ran. A program that is the same is not compiled.

    Args:
        program: a function of the library that traces a program, whose output is a dict; "init" is equal to the bit.
        theirs: Flax's package.
        ours: Sonde's.
        x: what the program is called with.
        precise: whether all numbers are doubles.
    """
    with warnings.catch_warnings():
        # Flax's BatchNorm writes doubles into its float32 averages; JAX warns, and warnings are errors in these tests.
        # Sonde converts them first, so for Sonde the warning stays an error.
        warnings.filterwarnings("ignore", "scatter inputs have incompatible types", FutureWarning)
        expected = _outcome(program, theirs)
    got = _outcome(program, ours)
    if isinstance(expected, str):
        assert got == expected
        return False
    assert not isinstance(got, str), got
    assert _forms(got) == _forms(expected)
    if names_of_outputs(got) != names_of_outputs(expected):
        _compare(*(traced.lower().compile(_EXACT)(x) for traced in (got, expected)), precise=precise)
    return True


def _outcome(program: Callable[[Any], Any], library: Any) -> Any:
    try:
        return program(library)
    except Exception as error:
        return type(error).__name__


def _forms(traced: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(traced.out_info)
    return {jax.tree_util.keystr(path): (x.shape, x.dtype) for path, x in leaves}


def _compare(ours: Any, theirs: Any, *, precise: bool) -> None:
    unit = jnp.finfo(jnp.float64 if precise else jnp.float32).eps
    for what in theirs:
        expected, got = (jax.tree_util.tree_leaves_with_path(both[what]) for both in (theirs, ours))
        # gradients that are zero but for rounding are measured by the others
        size = max((np.nanmax(np.abs(np.asarray(x, np.float64)), initial=0.0) for _, x in expected), default=0.0)
        limit = 0 if what == "init" else LIMIT * unit
        for (path, a), (_, b) in zip(got, expected):
            a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
            where = f"{what}{jax.tree_util.keystr(path)}"
            np.testing.assert_allclose(a, b, rtol=limit, atol=limit * size, err_msg=where)
