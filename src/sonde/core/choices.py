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

# In the place of the gate of a choice that is dealt with, if one of its branches does not have the site.
_PARTLY = frozenset({Gate("partly", 0, 2)})


def merge_choices(items: Sequence[Item]) -> list[Item]:
    """The items, with those of different branches at the same place made one."""
    result, before = list(items), len(items) + 1
    inside = _choices_inside(items)
    while inside and len(result) < before:  # what one choice leaves may take part in another around it
        before = len(result)
        for choice in sorted(inside, key=lambda choice: len(inside[choice])):
            result = _merged_at(choice, result, inside[choice])
    return result


def _choices_inside(items: Sequence[Item]) -> dict[Any, set[Any]]:
    """For each choice those that are made in one of its branches: they are met together with that branch alone."""
    together: dict[Any, dict[Any, set[int]]] = {}
    for item in items:
        for gate in item.view.gates:
            others = together.setdefault(gate.choice, {})
            for other in item.view.gates - {gate}:
                others.setdefault(other.choice, set()).add(gate.branch)
    return {
        choice: {other for other, branches in others.items() if len(branches) == 1 < len(together[other][choice])}
        | {
            other
            for other, branches in others.items()
            if len(branches) == len(together[other][choice]) == 1 and _branches(items, choice) > 1
        }
        for choice, others in together.items()
    }


def _branches(items: Sequence[Item], choice: object) -> int:
    """In how many branches of a choice something was met."""
    return len({gate.branch for item in items for gate in item.view.gates if gate.choice is choice})


def _merged_at(choice: object, items: list[Item], inside: set[Any]) -> list[Item]:
    """Makes one of items that differ only in the branch that one choice has taken, and the choices made in it."""
    places: dict[Any, list[Item]] = {}
    counts: dict[Any, int] = {}
    for item in items:
        key: Any = id(item)
        gate = _gate_at(choice, item)
        if gate is not None and item.view.is_value:
            site, others = item.site, item.view.gates - {gate}
            around = frozenset(g for g in others if g.choice not in inside) - _PARTLY
            kind = (item.path, site.tag, site.tree, site.arrays, _shape_of(item), around, around == others)
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
    others = (first.view.gates - {gate}) | (_PARTLY if len(items) < gate.branches else frozenset())
    if others:
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
