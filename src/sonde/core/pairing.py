"""Giving every gradient to the value it is the gradient of.

A site that was traced once and run once needs no thought. A function that is compiled once and called twice has one
site for both calls; there the token tells, at once if it is a number by now, by a select in the program if it is still
being traced. A site that was differentiated but got no gradient, while a backward pass ran, has gradient zero; one that
no backward pass concerns has none.

The rows of a gradient are put into the order of the value's rows: the gradient of a loop comes from a loop that runs
the other way, a gradient that was taken inside a loop body does not.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.choices import merge_choices, tokens_of
from sonde.core.handler import Handler, Met
from sonde.core.item import Item, expand
from sonde.core.site import Site


@dataclasses.dataclass(slots=True)
class Call:
    """A value and, by order of differentiation, its gradient: None stands for zeros."""

    item: Item
    grads: dict[int, Item | None]


def calls_of(handler: Handler) -> list[Call]:
    """Everything that a handler has recorded: each value with its gradients, in program order."""
    return pair(merge_choices(expand(handler.items)), handler.met)


def pair(items: Iterable[Item], met: Met) -> list[Call]:
    """Pairs values with gradients.

    Gradients whose value was not recorded (it was computed before the capture began) come as calls of their own.
    """
    items = list(items)
    calls = [Call(item, {}) for item in items if item.view.is_value]
    of_site: dict[Site, list[Call]] = {}
    for call in calls:
        for site in call.item.sites:
            of_site.setdefault(site, []).append(call)
    orphans: list[Call] = []
    shared: dict[tuple[int, ...], tuple[list[Call], list[Item]]] = {}
    for item in items:
        if item.view.is_value:
            continue
        candidates = list({id(c): c for s in item.sites for c in of_site.get(s, ())}.values())
        candidates = [c for c in candidates if c.item.view.order > item.view.order] or candidates
        if not candidates:
            if not any(site in met.sites for site in item.sites):
                orphans.append(Call(item, {}))
            continue
        # The same function inside and outside of a loop: the axes tell.
        candidates = [c for c in candidates if _same_axes(c.item, item)] or candidates
        if len(candidates) == 1:
            _add(candidates[0], item)
        else:
            key = tuple(map(id, candidates))
            shared.setdefault(key, (candidates, []))[1].append(item)
    for candidates, gradients in shared.values():
        _by_token(candidates, gradients)
    for call in calls:
        for order in met.backward:
            if call.item.view.order > order and all(site.has_gradient for site in call.item.sites):
                call.grads.setdefault(order, None)
    return calls + orphans


def _same_axes(value: Item, gradient: Item) -> bool:
    """Whether both have the same axes in front, wherever these are stored."""
    mine, other = value.view.axes, gradient.view.axes
    return [(a.kind, a.size, a.name) for a in mine] == [(a.kind, a.size, a.name) for a in other]


def _add(call: Call, gradient: Item) -> None:
    """Several backward passes through one call add up, as cotangents do."""
    gradient = _in_order_of(call.item, gradient)
    order = gradient.view.order
    before = call.grads.get(order)
    if before is not None and _fit(before, gradient):
        gradient = dataclasses.replace(
            gradient, leaves=[a + b for a, b in zip(before.leaves, gradient.leaves)], extras=gradient.extras
        )
    call.grads[order] = gradient


def _fit(a: Item, b: Item) -> bool:
    return [jnp.shape(x) for x in a.leaves] == [jnp.shape(x) for x in b.leaves]


def _by_token(candidates: Sequence[Call], gradients: Sequence[Item]) -> None:
    tokens = [[_one(token) for token in tokens_of(c.item)] for c in candidates]
    for gradient in gradients:
        token = _one(gradient.extras["token"])
        known = not any(isinstance(t, _jax.Tracer) for mine in (*tokens, [token]) for t in mine)
        for call, mine in zip(candidates, tokens):
            if known:
                if int(token) in map(int, mine):
                    _add(call, gradient)
                continue
            is_mine = functools.reduce(jnp.logical_or, [t == token for t in mine])
            leaves = [jnp.where(is_mine, x, jnp.zeros_like(x)) for x in gradient.leaves]
            _add(call, dataclasses.replace(gradient, leaves=leaves))


def _one(token: Any) -> Any:
    """The token of a call. It comes once per iteration and per shard, and is 0 where a branch was not taken."""
    if not np.ndim(token):
        return token
    is_here = not isinstance(token, _jax.Tracer) and getattr(token, "is_fully_addressable", True)
    return np.max(np.asarray(token)) if is_here else jnp.max(token)


def _in_order_of(value: Item, gradient: Item) -> Item:
    """Turns the loop axes of a gradient round where its rows are in the other order than the value's."""
    turn = turned_axes(value, gradient)
    if not turn:
        return gradient
    return gradient.map_arrays(lambda x: jax.lax.rev(jnp.asarray(x), [i for i in turn if i < jnp.ndim(x)]))


def turned_axes(value: Item, gradient: Item) -> list[int]:
    """The loop axes of a gradient, by position, along which its rows are in the other order than the value's.

    A loop puts the rows of a gradient where the rows of its inputs are, whichever way it runs, so that they are where
    the value's are, except that the value's were put in the order in which they were computed.
    """
    value_loops = [a for a in value.view.axes if a.is_loop]
    loops = [a for a in gradient.view.axes if a.is_loop]
    shared = 0
    while shared < min(len(value_loops), len(loops)) and value_loops[shared].loop is loops[shared].loop:
        shared += 1
    # What is left of the value's loops was transposed; loops in front of those run whole backward passes.
    first_transposed = max(shared, len(loops) - (len(value_loops) - shared))
    origins = [*loops[:first_transposed], *value_loops[len(value_loops) - (len(loops) - first_transposed) :]]
    return [i for i, axis in enumerate(origins) if axis.reverse]
