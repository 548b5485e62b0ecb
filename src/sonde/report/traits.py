"""What the findings need to know about a value beyond `tools.statistics`, counted where the array is.

Everything is a count, or a smallest or largest number, so that what `vmap` and branches make of one site can be put
together on the host. Only floating point and complex values (by their magnitude) have traits.

An array whose last two axes may be queries and keys gets further sums, per head (the third axis from the end): whether
it *is* attention is known only from the numbers, so the host decides.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core.arrays import arrays_in

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
    x = array.astype(jnp.float64 if array.dtype == jnp.float64 else jnp.float32)
    size = jnp.abs(x)
    finite = jnp.isfinite(x)
    counted = {
        "nan": jnp.isnan(x),
        "plus_inf": x == jnp.inf,
        "minus_inf": x == -jnp.inf,
        "near_one": size > NEARLY_ONE,
        "near_zero": size < NEARLY_ZERO,
        "whole": (size == 0) | (size == 1),
        "subnormal": (size > 0) & (size < tiny),
    }
    # All in one reduction: a compiler takes ten times as long for seven.
    *counts, low, high = jax.lax.reduce(
        (
            *(c.astype(jnp.int32) for c in counted.values()),
            jnp.where(finite, x, jnp.inf),
            jnp.where(finite, x, -jnp.inf),
        ),
        (*([np.int32(0)] * len(counted)), x.dtype.type(np.inf), x.dtype.type(-np.inf)),
        lambda a, b: (*(p + q for p, q in zip(a[:-2], b)), jnp.minimum(a[-2], b[-2]), jnp.maximum(a[-1], b[-1])),
        tuple(range(x.ndim)),
    )
    found = {**dict(zip(counted, counts)), "low": low, "high": high}
    if x.ndim and x.shape[-1] > 1 and x.size:
        total, least = jax.lax.reduce(
            (x, x),
            (x.dtype.type(0), x.dtype.type(np.inf)),
            lambda a, b: (a[0] + b[0], jnp.minimum(a[1], b[1])),
            (x.ndim - 1,),
        )
        sums_to_one = (least >= 0) & (jnp.abs(total - 1) < _SUM)
        found["rows"] = jnp.asarray(x.size // x.shape[-1], jnp.int32)
        found["rows_of_shares"] = jnp.sum(sums_to_one, dtype=jnp.int32)
    return found | (_of_attention(x) if _has_queries_and_keys(x.shape) else {})


def _has_queries_and_keys(shape: tuple[int, ...]) -> bool:
    if len(shape) < 2 or 0 in shape or min(shape[-2:]) < 2 or shape[-1] > _KEYS:
        return False
    return len(shape) > 3 or shape[-1] == shape[-2]


def _of_attention(x: Any) -> dict[str, Any]:
    x = x.reshape(-1, *((1,) * (3 - x.ndim)), *x.shape[max(0, x.ndim - 3) :])
    examples, heads, queries, _ = x.shape
    number = x.dtype.type
    n, least, most, top = jax.lax.reduce(
        ((x > 0).astype(jnp.int32), jnp.where(x > 0, x, jnp.inf), x, jax.lax.broadcasted_iota(jnp.int32, x.shape, 3)),
        (np.int32(0), number(np.inf), number(-np.inf), np.int32(0)),
        lambda a, b: (
            a[0] + b[0],
            jnp.minimum(a[1], b[1]),
            jnp.maximum(a[2], b[2]),
            jnp.where((a[2] > b[2]) | ((a[2] == b[2]) & (a[3] < b[3])), a[3], b[3]),
        ),
        (3,),
    )
    # The key that a head looks at most, over all queries.
    favourite = jnp.argmax(jnp.sum(x, (0, 2)), -1).astype(jnp.int32)
    several = n > 1
    flat = several & (jnp.maximum(most * n - 1, 1 - least * n) < FLAT)
    # A causal mask leaves the first query one key to look at: that says nothing.
    sharp = (most > NEARLY_ONE) & (jnp.arange(queries) > 0) & (top == favourite[:, None])
    opened, flattened, sharpened = jax.lax.reduce(
        tuple(c.astype(jnp.int32) for c in (several, flat, sharp)),
        (np.int32(0),) * 3,
        lambda a, b: tuple(p + q for p, q in zip(a, b)),
        (0, 2),
    )
    return {
        "head_rows": jnp.full((heads,), examples * (queries - 1), jnp.int32),
        "head_open": opened,
        "head_flat": flattened,
        "head_key": sharpened,
        "head_which": favourite,
    }


def traits_of_parts(value: Any) -> list[dict[str, Any]]:
    """The traits of every array in a pytree."""
    return [traits(x) for x in arrays_in(value)]


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
        if name in ("low", "high"):
            total[name] = (np.min if name == "low" else np.max)(
                x, where=mask, initial=np.inf if name == "low" else -np.inf
            )
        elif name == "head_which":  # a position, not a count: that of the first example stands for all
            total[name] = x[mask][0] if mask.any() else x[(0,) * len(lead)]
        else:
            total[name] = x[mask].sum(axis=0)
    return total
