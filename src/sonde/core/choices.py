"""Joining what the branches of a `cond` under `vmap` saw at the same place.

With a mapped predicate all branches run, and each records zeros in the elements that took another one. Sites of two
branches with the same path and the same types have one place in the records, as they have when one branch runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from sonde.core.item import Item
from sonde.core.site import Gate


def merge_choices(items: Sequence[Item]) -> list[Item]:
    """The items, with those of different branches at the same place made one."""
    depth = max((len(item.view.gates) for item in items), default=0)
    result = list(items)
    for level in range(depth, 0, -1):  # the innermost choice first: what it leaves may take part in the next
        result = _merge_level(result, level)
    return result


def _merge_level(items: list[Item], level: int) -> list[Item]:
    places: dict[Any, list[Item]] = {}
    counts: dict[Any, int] = {}
    order: list[Any] = []
    for item in items:
        if len(item.view.gates) != level or not item.view.is_value:
            key: Any = id(item)
        else:
            *outer, gate = item.view.gates
            kind = (
                item.path,
                item.site.tag,
                item.site.tree,
                item.site.arrays,
                _shape_of(item),
                tuple(outer),
                gate.choice,
            )
            number = counts[kind, gate.branch] = counts.get((kind, gate.branch), -1) + 1
            key = (kind, number)
        if key not in places:
            order.append(key)
        places.setdefault(key, []).append(item)
    return [_merged(places[key]) for key in order]


def _shape_of(item: Item) -> Any:
    return item.view.axes, tuple((t.shape, t.dtype) for t in item.types), item.tree


def _merged(items: list[Item]) -> Item:
    first = items[0]
    if len(items) == 1:
        return first
    gate: Gate = first.view.gates[-1]
    leaves, taken = first.leaves, first.extras["taken"]
    for other in items[1:]:
        mine = other.extras["taken"]
        leaves = [jnp.where(_over(mine, b), b, a) for a, b in zip(leaves, other.leaves)]
        taken = taken | mine
    extras = {name: x for name, x in first.extras.items() if name != "taken"}
    outer = first.view.gates[:-1]
    if outer or len(items) < gate.branches:
        extras["taken"] = taken
    if "token" in extras:  # one place, and in every branch another call
        extras["token"] = tuple(token for item in items for token in tokens_of(item))
    sites = tuple(site for item in items for site in item.sites)
    return dataclasses.replace(first, sites=sites, leaves=leaves, extras=extras, view=first.view.replace(gates=outer))


def tokens_of(item: Item) -> tuple[Any, ...]:
    """The tokens of the calls that an item stands for: one, unless branches were joined."""
    token = item.extras["token"]
    return token if isinstance(token, tuple) else (token,)


def _over(taken: Any, array: Any) -> Any:
    return taken.reshape(taken.shape + (1,) * (jnp.ndim(array) - taken.ndim))
