"""Merges what the branches of a `cond` under `vmap` recorded in the same slot.

With a mapped predicate all branches run, and each records zeros for the elements that took another branch. Sites of two
branches with the same path and the same types share one slot in the records, as they do when only one branch runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from sonde import _jax
from sonde.core.interpret.items import Item
from sonde.core.marks.axes import common_axes, either, extra_has, in_row, leaf_has, over_axes, with_leaves
from sonde.core.marks.site import Gate

# Replaces the gate of a choice that was merged, if one of its branches does not have the site.
_PARTLY = frozenset({Gate("partly", 0, 2)})


def merge_choices(items: Sequence[Item]) -> list[Item]:
    """The items, with those of different branches in one slot merged."""
    result, before = list(items), len(items) + 1
    inside = _choices_inside(items)
    while inside and len(result) < before:  # the merged items may belong to another choice around it
        before = len(result)
        for choice in sorted(inside, key=lambda choice: len(inside[choice])):
            result = _merged_at(choice, result, inside[choice])
    return result


def _choices_inside(items: Sequence[Item]) -> dict[Any, set[Any]]:
    """For each choice, the choices inside its branches: they occur only together with that branch."""
    branches_of: dict[Any, set[int]] = {}  # in which branches of a choice something was recorded
    branches_with: dict[Any, dict[Any, set[int]]] = {}  # and in which of them something of another choice was
    for item in items:
        for gate in item.view.gates:
            branches_of.setdefault(gate.choice, set()).add(gate.branch)
            of_others = branches_with.setdefault(gate.choice, {})
            for other in item.view.gates - {gate}:
                of_others.setdefault(other.choice, set()).add(gate.branch)

    def is_inside(inner: Any, choice: Any) -> bool:
        if len(branches_with[choice][inner]) > 1:
            return False  # of two nested choices, the outer one is in one branch of the inner one at the most
        # Of two choices that were each met in one branch of the other, the one that has further branches is around.
        return len(branches_with[inner][choice]) > 1 or len(branches_of[choice]) > 1

    return {choice: {inner for inner in others if is_inside(inner, choice)} for choice, others in branches_with.items()}


def _merged_at(choice: object, items: list[Item], inside: set[Any]) -> list[Item]:
    """Merges items that differ only in the branch that one choice took, and the choices inside that branch."""
    slots: dict[Any, list[Item]] = {}
    counts: dict[Any, int] = {}
    for item in items:
        key: Any = id(item)
        gate = _gate_at(choice, item)
        if gate is not None and item.view.is_value:
            site, other_gates = item.site, item.view.gates - {gate}
            around = frozenset(g for g in other_gates if g.choice not in inside) - _PARTLY
            kind = (item.path, site.tag, site.tree, site.arrays, _shape_of(item), around, around == other_gates)
            number = counts[kind, gate.branch] = counts.get((kind, gate.branch), -1) + 1
            key = (kind, number)
        slots.setdefault(key, []).append(item)
    return [item for same in slots.values() for item in _merged(choice, same)]


def _gate_at(choice: object, item: Item) -> Gate | None:
    return next((gate for gate in item.view.gates if gate.choice is choice), None)


def _shape_of(item: Item) -> Any:
    """What the values of two branches have in common: their types without mapped axes, and all other axes."""
    axes = item.view.axes
    unmapped = tuple(axis for axis in axes if axis.kind != "vmap")
    if item.tree is not None:  # what a reduce function returned has all the axes that there are
        return axes, tuple(a.mapped_by for a in axes), tuple((t.shape, t.dtype) for t in item.types), item.tree
    return unmapped, tuple((t.shape[sum(leaf_has(axes, i)) :], t.dtype) for i, t in enumerate(item.types))


def _merged(choice: object, items: list[Item]) -> list[Item]:
    """One item in place of several, unless it is unknown which of their axes correspond."""
    first = items[0]
    gate = _gate_at(choice, first)
    axes: Any = first.view.axes
    for later in items[1:]:
        common = common_axes(axes, later.view.axes)
        if common is None:
            return items
        axes = common[0]
    if len(items) == 1 or gate is None:
        return items
    rows = [common_axes(axes, item.view.axes) for item in items]
    if any(row is None for row in rows):
        return items
    on = [row[2] for row in rows if row is not None]

    def extra(i: int, name: str) -> tuple[Any, list[bool]]:
        return items[i].extras[name], in_row(on[i], extra_has(items[i].view.axes, name))

    def leaf(i: int, index: int) -> tuple[Any, list[bool]]:
        return items[i].leaves[index], in_row(on[i], items[i].has[index])

    leaves, (taken, taken_has) = [leaf(0, index) for index in range(len(first.leaves))], extra(0, "taken")
    for i in range(1, len(items)):
        branch_extra, branch_has = extra(i, "taken")
        for index, (chosen_leaf, has) in enumerate(leaves):
            branch_leaf, branch_leaf_has = leaf(i, index)
            chosen = over_axes(jnp.where, [branch_has, branch_leaf_has, has])(branch_extra, branch_leaf, chosen_leaf)
            leaves[index] = chosen, either(branch_has, branch_leaf_has, has)
        taken = over_axes(jnp.logical_or, [taken_has, branch_has])(taken, branch_extra)
        taken_has = either(taken_has, branch_has)
    view = first.view.replace(axes=with_leaves(axes, [has for _, has in leaves])).extra_on("taken", taken_has)
    for item in items[1:]:  # some branches may not be differentiated
        view = view.joined(item.view)
    extras = {name: x for name, x in first.extras.items() if name != "taken"}
    remaining_gates = (first.view.gates - {gate}) | (_PARTLY if len(items) < gate.branches else frozenset())
    if remaining_gates:
        extras["taken"] = taken
    if "count" in extras:  # of the same loop, or zero where the branch was not taken
        count, count_has = extra(0, "count")
        for i in range(1, len(items)):
            branch_extra, branch_has = extra(i, "count")
            count = over_axes(jnp.maximum, [count_has, branch_has])(count, branch_extra)
            count_has = either(count_has, branch_has)
        extras["count"], view = count, view.extra_on("count", count_has)
    if "token" in extras:  # one slot, with a different call in each branch
        extras["token"] = tuple(token for item in items for token in tokens_of(item))
    return [
        dataclasses.replace(
            first,
            sites=tuple(site for item in items for site in item.sites),
            leaves=[x for x, _ in leaves],
            extras=extras,
            view=view.replace(gates=remaining_gates),
            types=first.types if first.tree is not None or not leaves else tuple(_jax.type_of(x) for x, _ in leaves),
        )
    ]


def tokens_of(item: Item) -> tuple[Any, ...]:
    """The tokens of the calls in an item: one, unless branches were merged."""
    token = item.extras["token"]
    return token if isinstance(token, tuple) else (token,)
