"""Definitions: the structure of an object as nested tuples, which Python compares and hashes in C.

    (VARIABLE, class, index, metadata)      a leaf that is a Variable; trees have no indices
    (ARRAY,)                                a leaf that is not a Variable
    (ARRAY, index)                          a leaf that is an array reference; trees have no indices
    (OTHER, value)                          part of the structure
    (REFERENCE, index)                      an object that was visited before, by its index
    (NODE, class, index, layout, static values, definitions of the data attributes, entries, leaves)
    (CONTAINER, class, keys, how to unflatten it, definitions of the children, entries, leaves)

where `leaves` is the number of leaves below, and `entries` the number of children with leaves: a state has that many
entries there. `walk` makes definitions, `build` makes objects from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from sonde._key_paths import key_of
from sonde.nnx.states import traversals
from sonde.nnx.states.state import State
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, NODE, VARIABLE, kind_of

REFERENCE = 5
Path = tuple[Any, ...]
Definition = tuple[Any, ...]


def count_leaves(definition: Definition) -> int:
    """How many leaves a definition has."""
    tag = definition[0]
    if tag in (NODE, CONTAINER):
        return definition[-1]
    return 1 if tag in (VARIABLE, ARRAY) else 0


def has_references(definition: Definition) -> bool:
    """Whether some object in a definition occurs several times."""
    if definition[0] in (NODE, CONTAINER):
        return any(map(has_references, children_of(definition)[1]))
    return definition[0] == REFERENCE


def children_of(definition: Definition) -> tuple[Sequence[Any], Sequence[Any]]:
    """Keys and definitions of the children of a node or container."""
    if definition[0] == NODE:
        return definition[3].data, definition[5]
    return definition[2], definition[4]


def values_below(value: Any) -> tuple[Sequence[Any], Sequence[Any]]:
    """Keys and values of what is right below a node (its data) or a container; nothing is below anything else."""
    kind = kind_of(value)
    if kind == NODE:
        layout, data, _ = value._structure()
        return layout.data, data
    if kind == CONTAINER and value is not None:
        return flatten_once(value)[:2]
    return (), ()


@jax.tree_util.register_pytree_with_keys_class
class NamedValues:
    """Named arguments as one object to walk; the names are the first parts of the paths in messages."""

    __slots__ = ("names", "values")

    def __init__(self, names: tuple[str, ...], values: Sequence[Any]):
        self.names = names
        self.values = values

    def tree_flatten_with_keys(self) -> Any:
        """The values are the children, the names their keys."""
        return [(jax.tree_util.DictKey(n), v) for n, v in zip(self.names, self.values)], self.names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], values: Iterable[Any]) -> NamedValues:
        """The inverse."""
        return cls(names, tuple(values))


def flatten_once(value: Any) -> tuple[tuple[Any, ...], list[Any], Any]:
    """Keys and children of a container, and whatever else `unflatten_once` needs."""
    cls = type(value)
    if cls is list or cls is tuple:
        return tuple(range(len(value))), list(value), None
    if cls is dict:
        keys = tuple(traversals.sorted_keys(value))
        return keys, [value[key] for key in keys], tuple(value)
    if cls is State:
        mapping = value.raw_mapping
        keys = tuple(traversals.sorted_keys(mapping))
        return keys, [mapping[key] for key in keys], None
    if cls is NamedValues:
        return value.names, list(value.values), None
    with_paths, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda x: x is not value)
    keyed = [((key_of(path[0]),), (i, child)) for i, (path, child) in enumerate(with_paths)]
    ordered = traversals.sort_by_path(keyed)  # as in Flax: a shared object is found first under the smaller key
    positions = {i: position for position, (_, (i, _)) in enumerate(ordered)}
    order = tuple([positions[i] for i in range(len(positions))])
    return tuple([key for (key,), _ in ordered]), [child for _, (_, child) in ordered], (structure, order)


def unflatten_once(cls: type, keys: tuple[Any, ...], rebuild: Any, children: list[Any]) -> Any:
    """The inverse of `flatten_once`."""
    if cls is list:
        return children
    if cls is tuple:
        return tuple(children)
    if cls is dict:
        by_key = dict(zip(keys, children))
        return {key: by_key[key] for key in rebuild}  # in the order in which the dict had them
    if cls is State:
        return State(dict(zip(keys, children)), _copy=False)
    if cls is NamedValues:
        return NamedValues(keys, tuple(children))
    structure, order = rebuild
    return jax.tree_util.tree_unflatten(structure, [children[position] for position in order])


def numbered_as(definition: Definition, seen: Mapping[int, int], numbers: Mapping[int, int]) -> Any:
    """A definition with other numbers.

    Args:
        definition: What a walk found.
        seen: The numbers in it, by the identity of objects.
        numbers: The numbers to use instead, for objects that have one; other objects get larger numbers.
    """
    above = max(numbers.values(), default=-1) + 1
    table = {index: numbers.get(key, above + index) for key, index in seen.items()}
    return _renumbered(definition, table)


def _renumbered(d: Definition, table: Mapping[int, int]) -> Any:
    if d[0] == REFERENCE:
        return (REFERENCE, table[d[1]])
    if d[0] == VARIABLE:
        return (*d[:2], table[d[2]], d[3])
    if d[0] == NODE:
        return (*d[:2], table[d[2]], *d[3:5], tuple(_renumbered(child, table) for child in d[5]), *d[6:])
    if d[0] == CONTAINER:
        return (*d[:4], tuple(_renumbered(child, table) for child in d[4]), *d[5:])
    return d
