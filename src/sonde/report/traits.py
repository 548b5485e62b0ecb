"""What the findings need to know about a value beyond `tools.statistics`, counted where the array is.

Everything is a count or a sum, so that what `vmap` and branches make of one site can be added up on the host. Only
floating point and complex values (by their magnitude) have traits.

An array whose last two axes may be queries and keys gets further sums, per head (the third axis from the end): whether
it *is* attention is known only from the numbers, so the host decides.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NEARLY_ONE = 0.99
"""From which magnitude on a value that a squashing function made counts as saturated."""
NEARLY_ZERO = 0.01
"""Below which a value that a sigmoid made counts as saturated."""
FLAT = 1e-4
"""How far, relative to the mean, the weights of a row of attention may differ and still be called equal."""
_SUM = 0.02  # how far from one the sum of a row of half precision weights may be
_KEYS = 4096  # longer rows are not looked at as attention


def traits(array: Any) -> dict[str, Any]:
    """The traits of one array of one example; empty for arrays that are not of floating point."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return {}
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.abs(array)
    tiny = float(jnp.finfo(array.dtype).tiny)
    x = array.astype(jnp.promote_types(array.dtype, jnp.float32))
    size = jnp.abs(x)
    found = {
        "minus_inf": jnp.sum(x == -jnp.inf, dtype=jnp.int32),
        "nan": jnp.sum(jnp.isnan(x), dtype=jnp.int32),
        "near_one": jnp.sum(size > NEARLY_ONE, dtype=jnp.int32),
        "near_zero": jnp.sum(size < NEARLY_ZERO, dtype=jnp.int32),
        "whole": jnp.sum((size == 0) | (size == 1), dtype=jnp.int32),
        "subnormal": jnp.sum((size > 0) & (size < tiny), dtype=jnp.int32),
    }
    if x.ndim and x.shape[-1] > 1 and x.size:
        sums_to_one = (jnp.min(x, -1) >= 0) & (jnp.abs(jnp.sum(x, -1) - 1) < _SUM)
        found["rows"] = jnp.asarray(x.size // x.shape[-1], jnp.int32)
        found["rows_of_shares"] = jnp.sum(sums_to_one, dtype=jnp.int32)
    return found | _of_attention(x)


def _of_attention(x: Any) -> dict[str, Any]:
    if x.ndim < 2 or min(x.shape[-2:]) < 2 or x.shape[-1] > _KEYS:
        return {}
    x = x.reshape(-1, *((1,) * (3 - x.ndim)), *x.shape[max(0, x.ndim - 3) :])
    examples, heads, queries, keys = x.shape
    present = x > 0
    n = jnp.sum(present, -1)
    # A causal mask leaves the first query one key to look at: that says nothing.
    counted = jnp.broadcast_to(jnp.arange(queries) > 0, n.shape)
    spread = jnp.max(jnp.where(present, jnp.abs(x * n[..., None] - 1), 0), -1)
    sharp = counted & (jnp.max(x, -1) > NEARLY_ONE)
    head = jnp.broadcast_to(jnp.arange(heads)[:, None], n.shape)
    looked_at = jnp.zeros((heads, keys), jnp.int32).at[head, jnp.argmax(x, -1)].add(sharp.astype(jnp.int32))
    total = (0, 2)
    return {
        "head_rows": jnp.full((heads,), examples * (queries - 1), jnp.int32),
        "head_sharp": jnp.sum(sharp, total, dtype=jnp.int32),
        "head_open": jnp.sum(n > 1, total, dtype=jnp.int32),
        "head_flat": jnp.sum((n > 1) & (spread < FLAT), total, dtype=jnp.int32),
        "head_key": jnp.max(looked_at, -1),
        "head_which": jnp.argmax(looked_at, -1).astype(jnp.int32),
    }


def traits_of_parts(value: Any) -> list[dict[str, Any]]:
    """The traits of every array in a pytree."""
    return [traits(x) for x in jax.tree.leaves(value) if hasattr(x, "dtype")]


def added_up(found: dict[str, np.ndarray], taken: np.ndarray | None) -> dict[str, np.ndarray]:
    """The traits of all examples of one iteration.

    Args:
        found: Traits with mapped axes in front.
        taken: Which of the examples count: with the first of the mapped axes. All, if None.
    """
    total = {}
    for name, x in found.items():
        own = 1 if name.startswith("head_") else 0
        x = np.asarray(x)
        lead = x.shape[: x.ndim - own]
        mask = np.ones(lead, bool)
        if taken is not None:
            mask &= np.reshape(taken, np.shape(taken) + (1,) * (len(lead) - np.ndim(taken)))
        if name == "head_which":  # a position, not a count: that of the first example stands for all
            total[name] = x[mask][0] if mask.any() else x[(0,) * len(lead)]
        else:
            total[name] = x[mask].sum(axis=0)
    return total
