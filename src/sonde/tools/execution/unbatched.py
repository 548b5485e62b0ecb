"""Values of all examples together, for tools that must see a batch whole.

A `reduce` function sees one example of a `vmap`, as the models of Equinox are mapped, and cannot know which of the
batch it is. So what is mapped leaves the program as it is, and is reduced after that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp

from sonde.core import (
    Axis,
    Extra,
    InsideRequest,
    Pattern,
    Recording,
    Records,
    Reduce,
    Where,
    attach_records,
    make_records,
    run_with,
)
from sonde.tools.execution.record_values import Seen, each_seen


class _Unmapped(Recording):
    """Reduces the values that no `vmap` maps, and records the others as they are."""

    def __init__(self, patterns: tuple[Pattern, ...], *, reduce: Reduce) -> None:
        super().__init__(patterns, reduce=reduce, donates=False)
        self._of_unmapped = reduce
        self.key = ("unmapped", self.key)

    def record(self, arrays: list[Any], where: Where, extras: dict[Extra, Any]) -> None:
        """Records the arrays, or the result of the function."""
        self.reduce = None if _mapped(where.view.axes) else self._of_unmapped
        super().record(arrays, where, extras)


def records_whole(
    f: Callable, patterns: tuple[Pattern, ...], args: Any, kwargs: Any, *, reduce: Reduce, inside: InsideRequest | None
) -> Records:
    """Records of a call of `f` at sites that are arrays, for `seen_whole`. Its result is discarded.

    Args:
        f: Any callable.
        patterns: Which sites.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        reduce: Applied at the site to values that no `vmap` maps.
        inside: As `asked_for` gives it.
    """
    handler = _Unmapped(patterns, reduce=reduce)
    try:
        run_with(handler, f, args, kwargs, inside=inside)
    except Exception as error:
        attach_records(error, handler, None)
        raise
    return make_records(handler.items, handler.met)


def seen_whole(records: Records) -> Iterator[tuple[Seen, bool]]:
    """The values of `records_whole`.

    Yields:
        The result of `reduce` and True; or a mapped value and False. Loops are its first axes, then come the mapped
            ones, also where all examples have the same value.
    """
    for seen in each_seen(records):
        mapped = _mapped(seen.axes)
        yield (dataclasses.replace(seen, value=_with_all_axes(seen)) if mapped else seen), not mapped


def _mapped(axes: Sequence[Axis]) -> bool:
    return any(not axis.is_loop for axis in axes)


def _with_all_axes(seen: Seen) -> Any:
    value = seen.value
    for i, axis in enumerate(seen.axes):
        if not axis.on_leaf(0):
            value = jnp.repeat(jnp.expand_dims(value, i), axis.size or 1, axis=i)
    return value
