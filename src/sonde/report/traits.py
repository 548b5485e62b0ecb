"""What the findings need about a value beyond `tools.statistics`, counted on its device.

Everything is a count, or a smallest or largest number, so that the parts of one site that `vmap` and branches make can
be combined on the host. Only floating point and complex values (by their magnitude) have traits.

An array whose last two axes may be queries and keys gets further sums, per head (the third axis from the end): whether
it *is* attention is known only from the numbers, so the host decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import arrays_in
from sonde.tools.numerics.exponents import Exponents, HostRows, float_type

NEARLY_ONE = 0.99
"""The magnitude above which the output of a squashing function counts as saturated."""
NEARLY_ZERO = 0.01
"""The number below which the output of a sigmoid counts as saturated."""
FLAT = 1e-4
"""How far, relative to the mean, the weights of a row of attention may differ and still be called equal."""
UNIT = 0.1
"""How far from one the rms of a row may be and still count as normalized."""
_SUM = 0.02  # how far from one the sum of a row of half precision weights may be
_CANCELED = 1e-3  # how large a sum may be, relative to the sum of magnitudes, to count as zero
_KEYS = 4096  # longer rows are not treated as attention
_MOST_AXES = 4  # of which a softmax is looked for: batch, heads, queries, keys


def traits(array: Any) -> dict[str, Any]:
    """The traits of one array of one example; empty for arrays that are not of floating point."""
    return _traits(array, 0, jnp, array.dtype)


def traits_of_rows(rows: HostRows, dtype: Any, *, gradient: bool = False, all_of_them: bool = True) -> dict[str, Any]:
    """The traits of an array on the host, given as rows; the leading axes of loops and maps stay.

    Args:
        rows: The rows.
        dtype: The dtype of the array they were made of.
        gradient: Whether it is a gradient, which needs fewer traits.
        all_of_them: Whether to compute all traits, including those of attention where the numbers rule it out.
    """
    if not jnp.issubdtype(dtype, jnp.inexact):
        return {}
    with np.errstate(all="ignore"):
        if not rows.exponents:
            return _traits(rows.array, len(rows.front), np, dtype)
        tiny = math.frexp(float(jnp.finfo(dtype).tiny))[1] - 1
        less = gradient and not all_of_them
        traits = rows.together([_of_row(row, by, rows.shape, tiny, less) for row, by in zip(rows.rows, rows.exponents)])
        if not _has_queries_and_keys(rows.shape):
            return traits
        is_any = "rows_of_shares" in traits and np.any(traits["rows"] == traits["rows_of_shares"])
        return traits | (_of_attention(rows.array, len(rows.front), np) if all_of_them or is_any else {})


def _of_row(row: np.ndarray, exponents: Exponents, shape: tuple[int, ...], tiny: int, less: bool) -> dict[str, Any]:
    """The traits of a row with at least one number.

    Args:
        row: The row.
        exponents: Counts of its exponents.
        shape: Its shape in the array.
        tiny: The power of two of the smallest number that is not subnormal.
        less: Whether to leave out the traits of values only.
    """
    zeros = row.size - int(np.count_nonzero(row)) if exponents.smallest else 0
    nan = plus = minus = 0
    low, high = row.min(), row.max()
    if exponents.nonfinite:
        nan, plus, minus = (int(np.count_nonzero(c)) for c in (np.isnan(row), row == np.inf, row == -np.inf))
        finite = row[np.isfinite(row)]
        low, high = finite.min(initial=np.inf), finite.max(initial=-np.inf)
    traits: dict[str, Any] = {
        "nan": np.int32(nan),
        "plus_inf": np.int32(plus),
        "minus_inf": np.int32(minus),
        "subnormal": np.int32(exponents.below(tiny) - zeros),
        "low": low,
        "high": high,
    }
    if shape and shape[-1] > 1:
        parts = row.reshape(-1, shape[-1])
        traits["rows"] = np.int32(len(parts))
        traits["rows_of_zero_sum"] = np.int32(np.count_nonzero(_sums_to_zero(parts.sum(-1), np.abs(parts).sum(-1))))
    if less:
        return traits
    size = np.abs(row)
    traits["near_one"] = np.int32(np.count_nonzero(size > NEARLY_ONE))
    traits["near_zero"] = np.int32(np.count_nonzero(size < NEARLY_ZERO))
    traits["whole"] = np.int32(zeros + np.count_nonzero(size == 1))
    if shape and shape[-1] > 1:
        parts = row.reshape(-1, shape[-1])
        shares = parts.min(-1) >= 0
        if shares.any():
            shares &= np.abs(parts.sum(-1) - 1) < _SUM
        traits["rows_of_shares"] = np.int32(np.count_nonzero(shares))
        traits["rows_of_unit"] = np.int32(_count_of_unit(np.square(parts).mean(-1), np))
    return traits | _shares_along_other_axes(row.reshape(shape), 0, np)


def _sums_to_zero(sums: Any, sizes: Any) -> Any:
    """Whether positive and negative elements cancel, as they do in the gradient of what goes into a softmax."""
    return (sizes > 0) & (abs(sums) < _CANCELED * sizes)


def _count_of_unit(mean_square: Any, xp: Any) -> Any:
    return xp.sum((mean_square > (1 - UNIT) ** 2) & (mean_square < (1 + UNIT) ** 2), dtype=np.int32)


def _shares_along_other_axes(x: Any, lead: int, xp: Any) -> dict[str, Any]:
    """How many lines along each axis but the last are shares: a softmax over the wrong axis makes them.

    The names hold the axis, counted from the end: `lines_2` and `lines_of_shares_2` are those of the axis before the
    last.
    """
    shares: dict[str, Any] = {}
    shape = x.shape[lead:]
    if len(shape) != 2 and not _has_queries_and_keys(shape):  # each reduction takes time to compile
        return shares
    for axis in range(2, min(len(shape), _MOST_AXES) + 1):
        length = x.shape[-axis]
        if length < 2 or not x.size:
            continue
        sums, least = _reduced([(x, "sum"), (x, "min")], (x.ndim - axis,), xp)
        other_axes = tuple(range(lead, x.ndim - 1))
        is_share = (least >= 0) & (xp.abs(sums - 1) < _SUM)
        shares[f"lines_{axis}"] = xp.full(x.shape[:lead], math.prod(x.shape[lead:]) // length, np.int32)
        shares[f"lines_of_shares_{axis}"] = xp.sum(is_share, other_axes, dtype=np.int32)
    return shares


def _traits(array: Any, lead: int, xp: Any, dtype: Any) -> dict[str, Any]:
    """The traits of an array whose numbers had this type before they became floats on the host."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return {}
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = xp.abs(array)
    tiny = float(jnp.finfo(dtype).tiny)
    x = array.astype(float_type(array.dtype))
    size = xp.abs(x)
    finite = xp.isfinite(x)
    counted = {
        "nan": xp.isnan(x),
        "plus_inf": x == np.inf,
        "minus_inf": x == -np.inf,
        "near_one": size > NEARLY_ONE,
        "near_zero": size < NEARLY_ZERO,
        "whole": (size == 0) | (size == 1),
        "subnormal": (size > 0) & (size < tiny),
    }
    least, most = xp.where(finite, x, np.inf), xp.where(finite, x, -np.inf)
    *counts, low, high = _reduced(
        [*((c, "sum") for c in counted.values()), (least, "min"), (most, "max")], tuple(range(lead, x.ndim)), xp
    )
    traits = {**dict(zip(counted, counts)), "low": low, "high": high}
    shape = x.shape[lead:]
    if shape and shape[-1] > 1 and x.size:
        total, least, squares, sizes = _reduced(
            [(x, "sum"), (x, "min"), (x * x, "sum"), (size, "sum")], (x.ndim - 1,), xp
        )
        sums_to_one = (least >= 0) & (xp.abs(total - 1) < _SUM)
        mean_square = squares / shape[-1]
        is_unit = (mean_square > (1 - UNIT) ** 2) & (mean_square < (1 + UNIT) ** 2)
        axes = tuple(range(lead, x.ndim - 1))
        traits["rows"] = xp.full(x.shape[:lead], math.prod(shape[:-1]), np.int32)
        traits["rows_of_shares"] = xp.sum(sums_to_one, axes, dtype=np.int32)
        traits["rows_of_unit"] = xp.sum(is_unit, axes, dtype=np.int32)
        traits["rows_of_zero_sum"] = xp.sum(_sums_to_zero(total, sizes), axes, dtype=np.int32)
        traits |= _shares_along_other_axes(x, lead, xp)
    return traits | (_of_attention(x, lead, xp) if _has_queries_and_keys(shape) else {})


def _reduced(wanted: list[tuple[Any, str]], axes: tuple[int, ...], xp: Any) -> list[Any]:
    """Sums, smallest and largest numbers of arrays of one shape; booleans are counted.

    One reduction for all if compiled: the compiler takes ten times as long for seven.
    """
    arrays = [x.astype(np.int32) if x.dtype == bool else x for x, _ in wanted]
    if xp is np:
        plain: dict[str, Any] = {"sum": np.sum, "min": np.min, "max": np.max}
        starts = {"sum": 0, "min": np.inf, "max": -np.inf}
        return [plain[how](x, axes, initial=x.dtype.type(starts[how])) for x, (_, how) in zip(arrays, wanted)]
    first = {"sum": 0, "min": np.inf, "max": -np.inf}
    starts = tuple(x.dtype.type(first[how]) for x, (_, how) in zip(arrays, wanted))
    return list(jax.lax.reduce(tuple(arrays), starts, _combining([how for _, how in wanted]), axes))


def _combining(hows: Sequence[str]) -> Callable[[Any, Any], tuple[Any, ...]]:
    """A function of two tuples of numbers. The compiled program keeps it, so it must not close over arrays."""
    combine: dict[str, Any] = {"sum": jnp.add, "min": jnp.minimum, "max": jnp.maximum}
    return lambda a, b: tuple(combine[how](p, q) for how, p, q in zip(hows, a, b))


def _has_queries_and_keys(shape: tuple[int, ...]) -> bool:
    if len(shape) < 2 or 0 in shape or min(shape[-2:]) < 2 or shape[-1] > _KEYS:
        return False
    return len(shape) > 3 or shape[-1] == shape[-2]


def _of_attention(x: Any, lead: int, xp: Any) -> dict[str, Any]:
    front, shape = x.shape[:lead], x.shape[lead:]
    x = x.reshape((*front, math.prod(shape[:-3]), *((1,) * (3 - len(shape))), *shape[-3:]))
    examples, heads, queries, _ = x.shape[lead:]
    n, least, most = _reduced([(x > 0, "sum"), (xp.where(x > 0, x, np.inf), "min"), (x, "max")], (lead + 3,), xp)
    top = xp.argmax(x, -1)
    # The key that a head attends to most, over all queries.
    favorite = xp.argmax(xp.sum(x, (lead, lead + 2)), -1).astype(np.int32)
    several = n > 1
    flat = several & (xp.maximum(most * n - 1, 1 - least * n) < FLAT)
    # A causal mask leaves the first query only one key, so it is ignored.
    sharp = (most > NEARLY_ONE) & (xp.arange(queries) > 0) & (top == xp.expand_dims(favorite, (lead, lead + 2)))
    opened, flattened, sharpened = _reduced([(c, "sum") for c in (several, flat, sharp)], (lead, lead + 2), xp)
    # 1 for equal weights, 0 for one key only. NumPy evaluates the logarithm of zeros that are not used.
    entropies = xp.sum(xp.where(x > 0, -x * xp.log(xp.where(x > 0, x, 1)), 0), -1)
    entropies = xp.where(several, entropies / xp.log(xp.maximum(n, 2)), 0)
    return {
        "head_rows": xp.full((*front, heads), examples * (queries - 1), np.int32),
        "head_open": opened,
        "head_flat": flattened,
        "head_key": sharpened,
        "head_which": favorite,
        "head_entropy": xp.sum(entropies, (lead, lead + 2)),
        **_looked_at(x, lead, xp),
    }


def _looked_at(x: Any, lead: int, xp: Any) -> dict[str, Any]:
    """Per head, how much of the attention of all queries but the first goes to some keys."""
    queries, keys = x.shape[-2:]
    if queries != keys:
        return {}

    def on_diagonal(offset: int) -> Any:
        return xp.sum(xp.diagonal(x, offset, -2, -1)[..., 1 + offset :], (lead, lead + 2))

    return {
        "head_first": xp.sum(x[..., 1:, 0], (lead, lead + 2)),
        "head_previous": on_diagonal(-1),
        "head_same": on_diagonal(0),
        "head_future": xp.sum(xp.triu(x, 1), (lead, lead + 2, lead + 3)),
    }


def traits_of_parts(value: Any) -> list[dict[str, Any]]:
    """The traits of every array in a pytree."""
    return [traits(x) for x in arrays_in(value)]


def added_up(found: dict[str, np.ndarray], taken: np.ndarray | None) -> dict[str, np.ndarray]:
    """The traits of all examples of one iteration.

    Args:
        found: Traits with mapped axes in front.
        taken: Which of the examples count, along the first mapped axis; all if None.
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
        elif name == "head_which":  # a position, not a count: take that of the first example
            total[name] = x[mask][0] if mask.any() else x[(0,) * len(lead)]
        else:
            total[name] = x[mask].sum(axis=0)
    return total
