"""The handler that records values, for `capture` and everything built on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde import _jax
from sonde.core.interpret.handler import Handler
from sonde.core.interpret.items import Extra, Item
from sonde.core.interpret.where import Where
from sonde.core.marks.axes import extra_has, leaf_has, per_example, with_leaves, zero_unless
from sonde.core.marks.path import Pattern
from sonde.core.marks.site import Site, View, is_array, naming
from sonde.core.session.caches import by_identity
from sonde.core.session.closures import state_of
from sonde.core.session.session import with_capture_state

Reduce = Callable[[Any], Any]


class Recording(Handler):
    """Records values, and gradients on request, at the sites that the patterns match (at all sites without patterns).

    Attributes:
        grads: Whether gradients are recorded.
        reduce: A function of the value, applied at the site, whose result is recorded in its place.
        last: How many of the last iterations of a `while_loop` are kept.
        donates: Whether arguments may be donated; see `Handler.donates`.
    """

    def __init__(
        self,
        patterns: tuple[Pattern, ...],
        *,
        grads: bool = False,
        reduce: Reduce | None = None,
        last: int = 1,
        donates: bool = True,
    ) -> None:
        key: Hashable = ("collect", patterns, grads, last)
        if patterns or reduce is not None:
            key = (*key, by_identity(reduce), state_of(*patterns, reduce))
        super().__init__(key, patterns)
        self.grads = grads
        self.reduce = reduce
        self.last = last
        self.donates = donates
        self.records_only = reduce is None

    def record(self, arrays: list[Any], where: Where, extras: dict[Extra, Any]) -> None:
        """Records the arrays if they are wanted."""
        view = where.view
        if not self.wants(where) or (self.reduce is not None and view.sums_gradients and not view.is_value):
            return  # a reduce function of a gradient needs all parts of it
        if not self.grads:
            extras.pop("token", None)
        if "taken" in extras:
            arrays, view = zero_where_not(extras["taken"], arrays, view)
        types = tuple(map(_jax.type_of, arrays))
        tree = None
        if self.reduce is not None:
            reduced = reduce_at(self.reduce, arrays, where.site, view)
            arrays, tree = jax.tree.flatten(reduced)
        if (self.patterns or where.position.within) and where.named:
            view = view.replace(rows=tuple(where.rows(self.patterns or ("**",))))
        self.items.append(Item((where.marked,), where.path, view.recorded, arrays, extras, tree, types))

    def wants(self, where: Where) -> bool:
        """Whether to record a value, or the gradient of a recorded value."""
        site = where.marked
        if not where.view.is_value and (not self.grads or self.met.has_met(site)):
            return self.grads and self.met.wants_gradient(site)
        if self.patterns and not self.chosen(where):
            return False
        self.met.wanted.add(site)
        return True


def leaf_indices(view: View, n: int) -> tuple[int, ...]:
    """Positions, among the site's arrays, of the arrays that an item holds."""
    return view.gradient_of if view.gradient_of is not None else tuple(range(n))


def zero_where_not(gate: Any, arrays: list[Any], view: View) -> tuple[list[Any], View]:
    """The arrays with zeros for the elements whose branch was not taken; all then vary over the gate's axes."""
    axes = view.axes
    has = [leaf_has(axes, i) for i in range(len(arrays))]
    arrays, has = zero_unless(gate, extra_has(axes, "taken"), arrays, has)
    return arrays, view.replace(axes=with_leaves(axes, has))


def reduce_at(reduce: Reduce, arrays: Sequence[Any], site: Site, view: View) -> Any:
    """Applies a `reduce` function to a value or gradient at a site."""
    if view.gradient_of is not None:
        arrays, view = whole_gradient(arrays, site, view)

    def one(*xs: Any) -> Any:
        result = reduce(site.rebuild(xs))
        for leaf in jax.tree.leaves(result):
            if not isinstance(leaf, bool | int | float | complex) and not is_array(leaf):
                raise TypeError(f"a reduce function must return arrays and numbers, not {type(leaf).__name__}")
        return result

    with with_capture_state(None), naming(site, "the reduce function"):
        return per_example(one, view.axes, len(arrays))(*arrays)


def whole_gradient(arrays: Sequence[Any], site: Site, view: View) -> tuple[list[Any], View]:
    """A gradient with a part for every array of the site, so that a reduce function sees the structure that was sown.

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
