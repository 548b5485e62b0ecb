"""Joining what the branches of a `cond` under `vmap` saw at the same place.

With a mapped predicate all branches run, and each records zeros in the elements that took another one. Sites of two
branches with the same path and the same types have one place in the records, as they have when one branch runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from sonde.core.axes import either, extra_has, leaf_has, over_axes, select
from sonde.core.item import Item
from sonde.core.site import Gate


def merge_choices(items: Sequence[Item]) -> list[Item]:
    """The items, with those of different branches at the same place made one."""
    result, before = list(items), len(items) + 1
    choices = dict.fromkeys(gate.choice for item in items for gate in item.view.gates)
    while choices and len(result) < before:  # what one choice leaves may take part in another around it
        before = len(result)
        for choice in choices:
            result = _merged_at(choice, result)
    return result


def _merged_at(choice: object, items: list[Item]) -> list[Item]:
    """Makes one of items that differ only in the branch that one choice has taken."""
    places: dict[Any, list[Item]] = {}
    counts: dict[Any, int] = {}
    for item in items:
        key: Any = id(item)
        gate = _gate_at(choice, item)
        if gate is not None and item.view.is_value:
            site, others = item.site, item.view.gates - {gate}
            kind = (item.path, site.tag, site.tree, site.arrays, _shape_of(item), others)
            number = counts[kind, gate.branch] = counts.get((kind, gate.branch), -1) + 1
            key = (kind, number)
        places.setdefault(key, []).append(item)
    return [_merged(choice, same) for same in places.values()]


def _gate_at(choice: object, item: Item) -> Gate | None:
    return next((gate for gate in item.view.gates if gate.choice is choice), None)


def _shape_of(item: Item) -> Any:
    return item.view.axes, tuple((t.shape, t.dtype) for t in item.types), item.tree


def _merged(choice: object, items: list[Item]) -> Item:
    first = items[0]
    gate = _gate_at(choice, first)
    if len(items) == 1 or gate is None:
        return first
    # They have the same axes, and what each was taken by is there in the same way.
    axes = first.view.axes
    has = [leaf_has(axes, i, reduced=first.tree is not None) for i in range(len(first.leaves))]
    taken_has = extra_has(axes, "taken")
    leaves, taken = first.leaves, first.extras["taken"]
    for other in items[1:]:
        mine = other.extras["taken"]
        leaves, _ = select(mine, extra_has(other.view.axes, "taken"), other.leaves, has, leaves)
        taken = over_axes(jnp.logical_or, [taken_has, extra_has(other.view.axes, "taken")])(taken, mine)
        taken_has = either(taken_has, extra_has(other.view.axes, "taken"))
    view = first.view.extra_on("taken", taken_has)
    extras = {name: x for name, x in first.extras.items() if name != "taken"}
    others = first.view.gates - {gate}
    if others or len(items) < gate.branches:
        extras["taken"] = taken
    if "count" in extras:  # of the same loop, or zero where the branch was not taken
        count, count_has = extras["count"], extra_has(axes, "count")
        for other in items[1:]:
            mine, mine_has = other.extras["count"], extra_has(other.view.axes, "count")
            count, count_has = over_axes(jnp.maximum, [count_has, mine_has])(count, mine), either(count_has, mine_has)
        extras["count"], view = count, view.extra_on("count", count_has)
    if "token" in extras:  # one place, and in every branch another call
        extras["token"] = tuple(token for item in items for token in tokens_of(item))
    sites = tuple(site for item in items for site in item.sites)
    return dataclasses.replace(first, sites=sites, leaves=leaves, extras=extras, view=view.replace(gates=others))


def tokens_of(item: Item) -> tuple[Any, ...]:
    """The tokens of the calls that an item stands for: one, unless branches were joined."""
    token = item.extras["token"]
    return token if isinstance(token, tuple) else (token,)
