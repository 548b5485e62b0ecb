"""Which site made the first NaN or Inf? `first_nonfinite` runs a program once and says.

It costs a few reductions per site, on the device, inside loops; no array leaves the device. First means first in
program order: forward before backward, and in a loop by iteration before by place in the body.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.capture import check_callable, like, run_with
from sonde.core.collect import Collect
from sonde.core.item import Item, expand
from sonde.core.pairing import turned_axes
from sonde.errors import CaptureError


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """The finite values at a site, at one call and iteration.

    Attributes:
        path: The path of the site.
        gradient: Whether these are gradients.
        call: Which of the calls under that path, from 0.
        iteration: The number of the iteration of each loop around it, outermost first.
        low: The smallest value.
        high: The largest value.
    """

    path: str
    gradient: bool
    call: int
    iteration: tuple[int, ...]
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class NonFinite:
    """The first value that is not finite.

    Attributes:
        path: The path of the site.
        gradient: Whether it is in the gradient at the site (the value there is then finite).
        call: Which of the calls under that path, from 0.
        iteration: The number of the iteration of each loop around it, outermost first.
        source: The line of the user's code.
        nans: How many elements are NaN.
        infs: How many elements are infinite.
        size: How many elements there are.
        before: The ranges of the values met before it, the last few in program order, itself (its finite part) last.
    """

    path: str
    gradient: bool
    call: int
    iteration: tuple[int, ...]
    source: str
    nans: int
    infs: int
    size: int
    before: tuple[Range, ...]

    def __str__(self) -> str:
        what = "gradient" if self.gradient else "value"
        loop = f", iteration {', '.join(map(str, self.iteration))}" if self.iteration else ""
        lines = [
            f"first non-finite {what} at {self.path!r}, call {self.call}{loop}: {self.nans} NaN and {self.infs} Inf of "
            f"{self.size} elements ({self.source})"
        ]
        for r in self.before:
            place = f"{r.path}{' (gradient)' if r.gradient else ''}[{r.call}]{list(r.iteration) if r.iteration else ''}"
            lines.append(f"  {place}: {r.low:.6g} to {r.high:.6g}")
        return "\n".join(lines)


def first_nonfinite(f: Callable, *, context: int = 5) -> Callable[..., NonFinite | None]:
    """A function that runs `f` and reports the first NaN or Inf at a site, forward or backward; None if all is finite.

    Args:
        f: Any callable; jitted training steps are fine.
        context: How many of the sites before it to report the ranges of.

    Returns:
        A function with the arguments of `f`. The result of `f` is dropped.

    Raises:
        CaptureError: When called inside a transform, where there are no numbers yet.

    Example:
        >>> import jax, jax.numpy as jnp, sonde
        >>> @jax.jit
        ... def step(x):
        ...     x = sonde.sow(x * 1e30, "scaled")
        ...     return sonde.sow(x * x, "squared").sum()
        >>> found = sonde.first_nonfinite(step)(jnp.array([1.0, 1e-30]))
        >>> found.path, found.infs, found.size
        ('squared', 1, 2)
        >>> sonde.first_nonfinite(step)(jnp.zeros(2)) is None
        True
    """
    check_callable(f, "first_nonfinite")

    def look_for(*args: Any, **kwargs: Any) -> NonFinite | None:
        def make(depth: int) -> Collect:
            return Collect((), grads=True, reduce=numbers_of, fold=first_bad, depth=depth)

        _, handler = run_with(make, f, args, kwargs, grads=True)
        items = expand(handler.items)
        for item in items:
            if any(isinstance(x, _jax.Tracer) for x in item.arrays):
                raise CaptureError(
                    f"first_nonfinite must run on numbers, but {item.path!r} is being traced: call it outside of "
                    "jit, vmap and grad"
                )
        return first_of(events_of(items), context)

    return like(look_for, f)


def numbers_of(value: Any) -> list[Any]:
    """How many NaNs and Infs, the finite range, the size, the number of the iteration (`first_bad` fills that in)."""
    leaves = [x for x in jax.tree.leaves(value) if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)]
    nans, infs = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    low, high = jnp.full((), jnp.inf, jnp.float32), jnp.full((), -jnp.inf, jnp.float32)
    for x in leaves:
        size = jnp.abs(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x
        finite = jnp.isfinite(size)
        nans += jnp.sum(jnp.isnan(size), dtype=jnp.int32)
        infs += jnp.sum(jnp.isinf(size), dtype=jnp.int32)
        low = jnp.minimum(low, jnp.min(jnp.where(finite, size, jnp.inf), initial=jnp.inf).astype(jnp.float32))
        high = jnp.maximum(high, jnp.max(jnp.where(finite, size, -jnp.inf), initial=-jnp.inf).astype(jnp.float32))
    size = jnp.asarray(sum(x.size for x in leaves), jnp.int32)
    return [nans, infs, low, high, size, jnp.full((), -1, jnp.int32)]


def first_bad(old: Sequence[Any], new: Sequence[Any], index: Any) -> list[Any]:
    """In a while loop: the first iteration that is not finite, or the last one."""
    was_bad = (old[0] + old[1]) > 0
    numbered = [*new[:5], jnp.broadcast_to(index, jnp.shape(new[5])).astype(jnp.int32)]
    return [jnp.where(was_bad, a, b) for a, b in zip(old, numbered)]


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """What was seen at a site at one call and iteration."""

    path: str
    order: tuple[tuple[int, int], ...]
    item: Item
    call: int
    iteration: tuple[int, ...]
    nans: int
    infs: int
    low: float
    high: float
    size: int

    @property
    def range(self) -> Range:
        """The finite part."""
        return Range(self.path, not self.item.view.is_value, self.call, self.iteration, self.low, self.high)


def first_of(events: Sequence[Event], context: int) -> NonFinite | None:
    """The first of these events, in program order, that is not finite; `context` of those before it."""
    position = next((i for i, e in enumerate(events) if e.nans or e.infs), None)
    if position is None:
        return None
    bad = events[position]
    near = [e.range for e in events[max(0, position - context) : position + 1] if e.low <= e.high]
    return NonFinite(
        bad.path,
        not bad.item.view.is_value,
        bad.call,
        bad.iteration,
        bad.item.site.source,
        bad.nans,
        bad.infs,
        bad.size,
        tuple(near),
    )


def events_of(items: Sequence[Item]) -> list[Event]:
    """Every site at every iteration, in program order. The leaves of the items are what `numbers_of` returned."""
    return sorted(_events(items), key=lambda event: event.order)


def _events(items: Sequence[Item]) -> Iterator[Event]:
    """The same in the order of the items, with a key to sort by."""
    first_of_loop: dict[int, int] = {}
    calls: dict[tuple[str, bool], int] = {}
    values = {site: item for item in items if item.view.is_value for site in item.sites}
    for position, item in enumerate(items):
        # Of a gradient, the path is that of its value.
        value = item if item.view.is_value else next((values[s] for s in item.sites if s in values), None)
        path = item.path if value is None else value.path
        kind = (path, item.view.is_value)
        call = calls[kind] = calls.get(kind, -1) + 1
        loops = [a for a in item.view.axes if a.is_loop]
        turned = [] if value is None or value is item else turned_axes(value, item)
        nans, infs, low, high, size, step = (np.asarray(x) for x in jax.device_get(item.leaves))
        taken = np.asarray(jax.device_get(item.extras["taken"])) if "taken" in item.extras else np.ones((), bool)
        for axis in loops:
            first_of_loop.setdefault(id(axis.loop), position)
        for index in np.ndindex(nans.shape[: len(loops)]):
            here = taken[index[: taken.ndim]]
            if not np.any(here):
                continue
            order, iteration = [], []
            for i, (axis, k) in enumerate(zip(loops, index)):
                other_way = int(axis.size or 0) - 1 - k
                runs_as = k if item.view.is_value or not axis.reverse else other_way
                order.append((first_of_loop[id(axis.loop)], runs_as))
                iteration.append(other_way if i in turned else k)
            if "count" in item.extras and np.max(step[index]) >= 0:
                bad = np.asarray(nans[index] + infs[index]) > 0
                iteration.append(
                    int(
                        np.min(step[index], where=bad, initial=np.iinfo(np.int32).max)
                        if bad.any()
                        else np.max(step[index])
                    )
                )
            yield Event(
                path,
                (*order, (position, 0)),
                item,
                call,
                tuple(iteration),
                int(np.sum(nans[index])),
                int(np.sum(infs[index])),
                float(np.min(low[index], initial=np.inf)),
                float(np.max(high[index], initial=-np.inf)),
                int(np.sum(size[index])),
            )
