"""Statistics of many small arrays in a few operations, at the end of a step.

An accelerator takes as long to start an operation as to reduce a small array, and statistics are several operations for
every site. So small arrays of the same shape are stacked and reduced together, and all numbers leave the program
concatenated, as one array for each dtype.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde.core import (
    InsideRequest,
    Item,
    Pattern,
    StandIns,
    expand,
    kept_with,
    make_records,
    run_with,
    stand_ins,
    wrapped_like,
)
from sonde.tools.execution.deferred_reduce import WHOLE, KeepingSmall, whole_parts
from sonde.tools.execution.host_transfer import Fetching
from sonde.tools.numerics.array_statistics import moments, moments_of_parts


def worth_stacking() -> bool:
    """Whether stacking pays: on one accelerator. With several devices, arrays might have to move to be stacked."""
    return jax.default_backend() != "cpu" and jax.device_count() == 1


def stacked_capture(
    f: Any, patterns: tuple[Pattern, ...], names: Collection[str], *, grads: bool, inside: InsideRequest | None
) -> Callable | None:
    """A jitted function that also sends the moments of its sites to the host; None if `f` is not jitted."""
    jitted = _jax.jit_options(f)
    if jitted is None:
        return None
    fn, options = jitted
    reduce = functools.partial(moments_of_parts, names=names)

    def captured(models: StandIns, *args: Any, **kwargs: Any) -> tuple[Any, Fetching]:
        models.note((args, kwargs))
        handler = KeepingSmall(patterns, grads=grads, large=reduce, small=whole_parts)
        result = run_with(handler, fn, args, kwargs, grads=grads, inside=inside)
        items = _together(expand(handler.items), names)
        return result, Fetching.packed(make_records(items, handler.met, reduce=reduce))

    def compiled(*args: Any, **kwargs: Any) -> Any:
        models = stand_ins(inside, (args, kwargs))
        now = wrapped_like(functools.partial(captured, models), fn)
        return kept_with(compiled, models, lambda meter: meter.jit(now, **options))(*args, **kwargs)

    return compiled


def _together(items: list[Item], names: Collection[str]) -> list[Item]:
    """The items, with moments in place of arrays that were kept whole."""
    alike: dict[Any, list[tuple[int, int]]] = {}  # by shape: which item, which of its arrays
    whole = [jax.tree.unflatten(item.tree, item.leaves) for item in items]
    for i, (item, parts) in enumerate(zip(items, whole)):
        for j, part in enumerate(parts):
            if WHOLE in part:
                x = part[WHOLE]
                alike.setdefault((x.shape, x.dtype, len(item.view.axes)), []).append((i, j))
    for (_, _, lead), places in alike.items():
        made: Callable = functools.partial(moments, names=names)
        for _ in range(1 + lead):
            made = jax.vmap(made)
        found = made(jnp.stack([whole[i][j][WHOLE] for i, j in places]))
        for n, (i, j) in enumerate(places):
            whole[i][j] = {name: x[n] for name, x in found.items()}
    new = []
    for item, parts in zip(items, whole):
        leaves, tree = jax.tree.flatten(parts)
        new.append(dataclasses.replace(item, leaves=leaves, tree=tree))
    return new
