"""Puts values of one run into another, by path, call and iteration.

`sonde.edit` replaces the value at a site by one rule. Here the rule also gets the place, so that single values of one
run can be put into another. They are put there by the program itself, as an edit is: a function that differentiates
inside gets the derivative of the program with the values written in by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from sonde.core import InsideRequest, Pattern, Put, Supplied, Where, arrays_in, capture, put_by_rule
from sonde.errors import EditError
from sonde.tools.execution.record_values import Seen

_IS_THERE = np.dtype(bool)


def _selected(old: list[Any], new: list[Any], is_there: list[Any]) -> list[Any]:
    return [jnp.where(mask, b, a) for a, b, mask in zip(old, new, is_there)]


def _along_direction(old: list[Any], new: list[Any], is_there: list[Any], direction: list[Any]) -> list[Any]:
    patched = [a + ((b - a) * unit).sum(-1, keepdims=True) * unit for a, b, unit in zip(old, new, direction)]
    return _selected(old, patched, is_there)


SELECTED = Put(_selected, (None, _IS_THERE))
"""New arrays, and for each of their elements whether it takes the place of the old one."""
SELECTED_ALONG = Put(_along_direction, (None, _IS_THERE, None))
"""The same with the part along a direction alone: a unit vector along the last axis, of the shape of the arrays."""


def in_record(where: Where, seen: Seen) -> tuple[Any, tuple[Any, ...]]:
    """Where an iteration is in a record, which may have only some rows of named loops.

    Args:
        where: Where the program is.
        seen: A value of the record, with the axes of all loops.

    Returns:
        Whether the record has it, and its indices along the axes of the loops.
    """
    is_there: Any = True
    steps, named = list(where.iteration), []
    for i, axis in enumerate(axis for axis in seen.axes if axis.is_loop):
        if i >= len(steps) or axis.rows is None:
            continue
        named.append((i, axis.rows))
        if seen.rows is not None:  # only some rows; the axis does not say how many there are
            rows = np.asarray(axis.rows)
            is_there = is_there & jnp.any(steps[i] == rows)
            steps[i] = jnp.argmax(steps[i] == rows)
    if seen.rows is not None and len(seen.rows) < math.prod(len(rows) for _, rows in named):
        have = np.zeros([len(rows) for _, rows in named], bool)  # not every combination of these numbers
        for row in seen.rows:
            have[tuple(rows.index(n) for n, (_, rows) in zip(row, named))] = True
        is_there = is_there & jnp.asarray(have)[tuple(steps[i] for i, _ in named)]
    return is_there, tuple(steps)


def recorded_here(seen: Seen, where: Where) -> Supplied:
    """What a record has for a place: what a rule supplies with `sonde.core.REPLACED`."""
    is_there, steps = in_record(where, seen)
    new = [where.slice_of(array, i, steps) for i, array in enumerate(arrays_in(seen.value))]
    return Supplied([new], None if is_there is True else is_there)


def not_differentiated(where: Where, verb: str) -> Where:
    """The place, for a rule whose arrays depend on the value there.

    Raises:
        EditError: The program differentiates the value: what is put there would have no derivative.
    """
    if where.is_differentiated:
        raise EditError(
            f"{verb} at {where.path!r} ({where.site.line}): the program differentiates this value itself, and what "
            "is put there would be a constant for that; differentiate the result instead, as in "
            "jax.grad(splice(f, ...)), or leave the gradient out of the program"
        )
    return where


def values_to_place(f: Callable[..., Any], *patterns: Pattern, inside: InsideRequest | None = None) -> Callable:
    """`sonde.capture(f, *patterns)` with the values that a rule will get: Python numbers become arrays."""
    return capture(put_by_rule(f, _nothing, paths=(), inside=inside), *patterns, inside=inside)


def _nothing(arrays: Sequence[Any], where: Where) -> None:
    """Puts nothing anywhere."""
