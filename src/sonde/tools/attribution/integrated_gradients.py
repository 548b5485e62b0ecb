"""The gradient of a number with respect to a value, averaged along the line from a baseline to the value.

The rows of a named loop are separate values, as in a list: each is interpolated alone, by a program that is compiled
once for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import InsideRequest, Row, Supplied, Where, put_by_rule
from sonde.errors import CaptureError
from sonde.tools.execution.record_values import Seen
from sonde.tools.intervention.patch_values import SELECTED, in_record

Pair = tuple[Any, Any] | None  # an array and what it is compared with; None if it cannot be differentiated


def is_inexact(x: jax.Array) -> bool:
    """Whether something is an array that can be differentiated."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)


def mean_gradients(
    calls: Sequence[Seen],
    bases: Sequence[Any],
    number: Callable[[Callable[[Callable], Callable], Any], Any],
    steps: int,
    inside: InsideRequest | None = None,
) -> list[list[Any]]:
    """The mean gradient with respect to all calls of a site.

    Args:
        calls: The calls, with the axes of all loops.
        bases: For each, what it is compared with.
        number: The number that is differentiated, as a function of what changes the program, and of a zero on which
            all values of the program depend.
        steps: How many points of the line to use.
        inside: As in `sonde.capture`.

    Returns:
        For each call a gradient like each of its arrays; None for arrays that cannot be differentiated.

    Raises:
        CaptureError: The site is in a `while_loop`.
    """
    for seen in calls:
        if seen.count is not None:
            raise CaptureError(
                f"attribute cannot integrate over {seen.path!r} ({seen.site.line}): it is in a while_loop, of which "
                "only the last iteration is recorded"
            )
    pairs = [_pairs(seen, base) for seen, base in zip(calls, bases)]
    rows = sorted({row for seen in calls for row in _rows(seen)})

    def of_row(row: Any) -> list[list[Any]]:
        """The gradients of one row: of the whole value, if it is in no named loop."""
        mine = [[p and _cut(p, seen, row) for p in of_call] for seen, of_call in zip(calls, pairs)]

        def of_new(new: Sequence[Sequence[Any]], touch: jax.Array) -> Any:
            return number(lambda f: _with_values(f, calls, new, row, inside), touch)

        def add(total: Any, part: Any) -> tuple[Any, None]:
            new = [[p and _between(p, part) for p in of_call] for of_call in mine]
            gradient, _ = jax.grad(of_new, (0, 1))(new, jnp.zeros(()))
            return jax.tree.map(lambda t, g: t + g / steps, total, gradient), None

        middles = (jnp.arange(steps, dtype=jnp.float32) + 0.5) / steps
        zeros = [[p and jnp.zeros_like(p[0]) for p in of_call] for of_call in mine]
        return jax.lax.scan(add, zeros, middles)[0]

    if rows == [()]:
        return of_row(())
    found = jax.lax.map(of_row, jnp.asarray(rows))
    return [[g if g is None else _put_back(g, seen, rows) for g in of_call] for seen, of_call in zip(calls, found)]


def _pairs(seen: Seen, base: jax.Array) -> list[Pair]:
    leaves = zip(jax.tree.leaves(seen.value), jax.tree.leaves(base))
    return [(x, jnp.asarray(b, x.dtype)) if is_inexact(x) else None for x, b in leaves if hasattr(x, "dtype")]


def _between(pair: tuple[Any, Any], part: Any) -> Any:
    x, base = pair
    return base + part.astype(x.dtype) * (x - base)


def _named(seen: Seen) -> list[int]:
    """Which of the loops around a value have a name."""
    return [i for i, axis in enumerate(seen.axes) if axis.rows is not None]


def _rows(seen: Seen) -> list[Row]:
    """The rows of a value. Outside named loops there is only one, without numbers."""
    if seen.rows is not None:
        return list(seen.rows)
    axes = [tuple(seen.axes[i].rows or ()) for i in _named(seen)]
    return [tuple(rows[n] for n, rows in zip(index, axes)) for index in np.ndindex(*map(len, axes))]


def _places(seen: Seen, row: Sequence[Any]) -> list[tuple[int, Any]]:
    """The named axes of a value, last first, each with the index of a row along it."""
    axes = [(i, np.asarray(seen.axes[i].rows)) for i in _named(seen)]
    return [(i, jnp.argmax(rows == n)) for (i, rows), n in reversed(list(zip(axes, row)))]


def _cut(pair: tuple[Any, Any], seen: Seen, row: Sequence[Any]) -> tuple[Any, Any]:
    """One row of an array and of its base, which may be a number."""
    x, base = pair
    for axis, at in _places(seen, row):
        x = jax.lax.dynamic_index_in_dim(x, at, axis, keepdims=False)
        base = jax.lax.dynamic_index_in_dim(base, at, axis, keepdims=False) if jnp.ndim(base) else base
    return x, base


def _put_back(gradients: Any, seen: Seen, rows: Sequence[Row]) -> Any:
    """Turns gradients of rows (along the first axis) into those of a value with the axes of all loops."""
    named = _named(seen)
    mine = [i for i, row in enumerate(rows) if row in set(_rows(seen))]
    lengths = [len(seen.axes[i].rows or ()) for i in named]
    at = [[list(seen.axes[i].rows or ()).index(rows[n][k]) for n in mine] for k, i in enumerate(named)]
    whole = jnp.zeros((*lengths, *gradients.shape[1:]), gradients.dtype)
    whole = whole.at[tuple(map(np.asarray, at))].set(gradients[np.asarray(mine)])
    return jnp.moveaxis(whole, range(len(named)), named)


def _with_values(
    f: Callable, calls: Sequence[Seen], new: Sequence[Sequence[Any]], row: Sequence[Any], inside: InsideRequest | None
) -> Callable:
    """`f` with new arrays at one row of a site; None stands for an array that stays."""

    def rule(values: Sequence[Any], where: Where) -> Supplied | None:
        if where.path != calls[0].path:
            return None
        seen = calls[where.call]
        is_there, steps = in_record(where, seen)
        named = _named(seen)
        for i, n in zip(named, row):
            is_there = is_there & (where.iteration[i] == n)
        steps = tuple(step for i, step in enumerate(steps) if i not in named)
        parts = [
            a if b is None else where.slice_of(b, i, steps) for i, (a, b) in enumerate(zip(values, new[where.call]))
        ]
        masks = [
            jnp.broadcast_to(False if b is None else is_there, jnp.shape(a)) for a, b in zip(values, new[where.call])
        ]
        return Supplied([parts, masks])

    return put_by_rule(f, rule, SELECTED, paths=[calls[0].path], inside=inside)
