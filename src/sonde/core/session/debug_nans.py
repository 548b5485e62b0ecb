"""`jax_debug_nans` and `jax_debug_infs` in a capture: they are about the results of the program, not what is recorded.

JAX checks all outputs of a compiled program. With a capture these include values that the program computes and then
discards, such as a NaN that a `where` masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax

T = TypeVar("T")


def checking_results(run: Callable[[], T], results: Callable[[T], Any], forget: Callable[[], None] | None = None) -> T:
    """Runs something; JAX's checks see only some of its results.

    Args:
        run: Runs it. If a result is not finite, it runs again with the checks, so that JAX says where that comes from.
        results: The results that are checked.
        forget: Undoes what the first run has left.
    """
    config: Any = jax.config
    nans, infs = config.jax_debug_nans, config.jax_debug_infs
    if not (nans or infs):
        return run()
    with jax.debug_nans(False), jax.debug_infs(False):
        output = run()
    if not any(_fails(x, nans, infs) for x in jax.tree.leaves(results(output))):
        return output
    if forget is not None:
        forget()
    return run()


def _fails(value: Any, nans: bool, infs: bool) -> bool:
    if isinstance(value, _jax.Tracer) or not isinstance(value, (jax.Array, np.ndarray)):
        return False
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return False
    numbers = np.asarray(value)
    return bool((nans and np.isnan(numbers).any()) or (infs and np.isinf(numbers).any()))
