"""`nnx.pop`: leaves taken out of a model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

from sonde.nnx.states import traversals
from sonde.nnx.states.filters import Filter, PathParts, to_predicate
from sonde.nnx.states.state import group_flat, states_of
from sonde.nnx.structure.definitions import values_below
from sonde.nnx.structure.update import can_set_child
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, NODE, VARIABLE, kind_of


def pop(node: object, *filters: Filter) -> Any:
    """Takes leaves out of a model and returns them as a State; with several filters, a tuple of States.

    A shared Variable is taken from its first path that matches, and stays at the others.

    Args:
        node: The object to change.
        *filters: Which leaves to take.

    Raises:
        ValueError: There is no filter, or a leaf sits in something that cannot be changed, such as a tuple.

    Example:
        >>> from sonde import nnx
        >>> model = nnx.Dict(w=nnx.Param(1.0), seen=nnx.Intermediate(2.0))
        >>> nnx.pop(model, nnx.Intermediate).seen.get_value(), list(model)
        (2.0, ['w'])
    """
    if not filters:
        raise ValueError("pop takes at least one filter; use `...` to take everything.")
    if kind_of(node) not in (NODE, CONTAINER):
        raise TypeError(f"pop takes a node or a pytree of nodes, got {type(node).__name__}.")
    predicates = [to_predicate(f) for f in filters]
    owners: list[tuple[Any, Any]] = []
    taken = dict(_poppable(node, (), lambda p, v: any(f(p, v) for f in predicates), set(), owners))
    # All checks before the first removal: an error leaves the model as it was.
    for parent, key in owners:
        if not can_set_child(parent):
            raise ValueError(f"Cannot pop '{key}' out of a {type(parent).__name__}, which cannot be changed in place.")
    # The last items of lists first, or the indices of the others would move.
    for parent, key in sorted(owners, key=lambda owner: traversals.path_order((owner[1],)), reverse=True):
        _delete_child(parent, key)
    groups = group_flat(taken.items(), predicates)[:-1]
    states = states_of(groups)
    return states[0] if len(states) == 1 else states


def _poppable(
    node: object, path: PathParts, matches: Callable[..., Any], visited: set[int], owners: list[tuple[Any, Any]]
) -> Iterator[tuple[PathParts, Any]]:
    """The leaves to take, with their paths; a shared leaf at its first path that matches.

    Args:
        node: A node or container.
        path: Its path.
        matches: A predicate of path and leaf.
        visited: Identities of the nodes that were visited, and of the Variables that are taken.
        owners: A list that gets the owner and the key of each leaf that is taken.
    """
    if kind_of(node) == NODE:
        if id(node) in visited:
            return
        visited.add(id(node))
    for key, child in zip(*values_below(node)):
        kind, child_path = kind_of(child), (*path, key)
        if kind in (NODE, CONTAINER):
            yield from _poppable(child, child_path, matches, visited, owners)
        elif kind in (VARIABLE, ARRAY) and id(child) not in visited and matches(child_path, child):
            if kind == VARIABLE:
                visited.add(id(child))
            owners.append((node, key))
            yield child_path, child


def _delete_child(node: Any, key: Hashable) -> None:
    if kind_of(node) == NODE:
        node._delete_child(key)
    else:
        del node[key]
