"""The handler that remembers what passes: `capture` and everything built on it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde.core.context import look
from sonde.core.handler import Handler
from sonde.core.item import Item
from sonde.core.path import Pattern
from sonde.core.site import Axis, Site, View

Reduce = Callable[[Any], Any]


class Collect(Handler):
    """Records values, and gradients if asked, at the sites that the patterns choose (at all, if there are none).

    Attributes:
        grads: Whether gradients are recorded.
        reduce: A function of the value, applied at the site, whose result is recorded in its place.
        last: How many of the last iterations of a `while_loop` are kept.
        fold: How several iterations of a `while_loop` become one, if not by keeping the last; see `Handler.fold`.
        donates: Whether arguments may be donated; see `Handler.donates`.
    """

    def __init__(
        self,
        patterns: tuple[Pattern, ...],
        *,
        grads: bool = False,
        reduce: Reduce | None = None,
        last: int = 1,
        fold: Any = None,
        donates: bool = True,
        depth: int = 1,
    ) -> None:
        key: Hashable = ("collect", patterns, grads, reduce, last, fold, depth)
        super().__init__(key, patterns, depth=depth)
        self.grads = grads
        self.reduce = reduce
        self.last = last
        self.fold = fold
        self.donates = donates
        self.records_only = reduce is None

    def record(self, arrays: list[Any], site: Site, path: str, view: View, *, token: Any, gate: Any) -> None:
        """Remembers the arrays if they are wanted."""
        if not self.wants(site, path, view):
            return
        extras: dict[Any, Any] = {}
        if token is not None and self.grads:
            extras["token"] = token
            view = view.extra_on("token", [False] * len(view.axes))
        if gate is not None:
            arrays, view = zero_where_not(gate, arrays, view)
            extras["taken"] = gate
            view = view.extra_on("taken", [i < gate.ndim for i in range(len(view.axes))])
        types = tuple(map(_jax.type_of, arrays))
        tree = None
        if self.reduce is not None:
            reduced = reduce_at(self.reduce, arrays, site, view)
            arrays, tree = jax.tree.flatten(reduced)
        self.items.append(Item((site,), path, view.recorded, arrays, extras, tree, types))

    def wants(self, site: Site, path: str, view: View) -> bool:
        """Whether a value, or the gradient of a value that was recorded, is to be recorded."""
        if not view.is_value and (not self.grads or self.met.has_met(site)):
            return self.grads and self.met.wants_gradient(site)
        if self.patterns and not self.chosen(site, path):
            return False
        self.met.wanted.add(site)
        return True


def spread(array: Any, axes: Sequence[Axis], index: int, *, skip: int = 0) -> Any:
    """Gives a leaf the axes that it does not vary over and was stored without; the first `skip` are others."""
    for position, axis in enumerate(axes, skip):
        if not axis.on_leaf(index):
            expanded = jnp.expand_dims(array, position)
            shape = (*expanded.shape[:position], axis.size, *expanded.shape[position + 1 :])
            array = jnp.broadcast_to(expanded, shape)
    return array


def aligned(array: Any, has: Sequence[bool], wanted: Sequence[bool]) -> Any:
    """An array that has some of a row of axes, for broadcasting with one that has the wanted ones, and maybe more."""
    sizes = iter(jnp.shape(array))
    shape = [next(sizes) if mine else 1 for mine, other in zip(has, wanted) if mine or other]
    return jnp.reshape(array, (*shape, *sizes))


def leaf_indices(view: View, n: int) -> tuple[int, ...]:
    """Positions, among the site's arrays, of the arrays that an item holds."""
    return view.gradient_of if view.gradient_of is not None else tuple(range(n))


def zero_where_not(gate: Any, arrays: list[Any], view: View) -> tuple[list[Any], View]:
    """The arrays with zeros in the elements whose branch was not taken; all of them then vary over the gate's axes."""
    n = gate.ndim
    axes = (*[dataclasses.replace(a, leaves=None) for a in view.axes[:n]], *view.axes[n:])
    spread_out = [spread(x, view.axes[:n], i) for i, x in enumerate(arrays)]
    zeroed = []
    for x in spread_out:
        taken = gate.reshape(gate.shape + (1,) * (x.ndim - n))
        zeroed.append(jnp.where(taken, x, _jax.zeros_of_type(_jax.typeof(x))))
    return zeroed, view.replace(axes=axes)


def per_example(fn: Callable[..., Any], view: View, n: int) -> Callable[..., Any]:
    """`fn`, which takes a site's `n` arrays as they were sown, for arrays with the view's mapped axes in front."""
    for axis in reversed(view.axes):
        in_axes = tuple(0 if axis.on_leaf(i) else None for i in range(n))
        if any(a is not None for a in in_axes):
            fn = jax.vmap(fn, in_axes=in_axes, axis_size=axis.size)
        else:
            fn = functools.partial(_repeated, fn, axis.size)
    return fn


def _repeated(fn: Callable[..., Any], size: Any, *arrays: Any) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *jnp.shape(x))), fn(*arrays))


def reduce_at(reduce: Reduce, arrays: Sequence[Any], site: Site, view: View) -> Any:
    """Applies a `reduce` function to a value or gradient at a site."""
    if view.gradient_of is not None:
        arrays, view = whole_gradient(arrays, site, view)
    with look(None):
        return per_example(lambda *xs: reduce(site.rebuild(xs)), view, len(arrays))(*arrays)


def whole_gradient(arrays: Sequence[Any], site: Site, view: View) -> tuple[list[Any], View]:
    """A gradient with a part for every array of the site: a reduce function sees the structure that was sown.

    Parts that have no gradient (integers, arrays nothing was differentiated through) are scalar zeros, which cost
    nothing.
    """
    n = sum(site.arrays)
    if view.gradient_of == tuple(range(n)):
        return list(arrays), view
    by_index = dict(zip(view.gradient_of or (), enumerate(arrays)))
    axes = tuple(
        dataclasses.replace(a, leaves=tuple(i in by_index and a.on_leaf(by_index[i][0]) for i in range(n)))
        for a in view.axes
    )
    filled = [by_index[i][1] if i in by_index else jnp.zeros(()) for i in range(n)]
    return filled, view.replace(axes=axes)
