"""The parts of a GraphDef by kind, for code that looks into `graphdef.nodes` as it does in Flax."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from sonde.nnx.structure.definitions import REFERENCE, Definition, children_of
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, NODE, OTHER, VARIABLE


@dataclasses.dataclass(frozen=True)
class NodeDef:
    """A node or container visited for the first time.

    Attributes:
        type: Its class.
        index: The number of the object; None for a container.
    """

    type: type
    index: int | None


@dataclasses.dataclass(frozen=True)
class VariableDef:
    """A Variable visited for the first time.

    Attributes:
        type: Its class.
        index: The number of the object.
    """

    type: type
    index: int


@dataclasses.dataclass(frozen=True)
class NodeRef:
    """An object that was visited before.

    Attributes:
        index: The number of the object.
    """

    index: int


@dataclasses.dataclass(frozen=True)
class ArrayAttr:
    """A leaf that is not a Variable."""


@dataclasses.dataclass(frozen=True)
class TreeNodeDef:
    """A whole structure that was taken as a tree (`graph=False`).

    Attributes:
        type: The class of the object.
        path_index: The paths of the leaves with their numbers, in the order of states.
    """

    type: type | None
    path_index: tuple[tuple[tuple[Any, ...], int], ...] = ()


def nodes_of(definition: Definition) -> list[Any]:
    """The parts of a definition, in the order of the walk."""
    if _is_tree(definition):
        kind = definition[1] if definition[0] in (NODE, CONTAINER, VARIABLE) else None
        return [TreeNodeDef(kind, tuple((path, i) for i, path in enumerate(_leaf_paths(definition, ()))))]
    tree_parts: list[Any] = []
    _gather(definition, tree_parts)
    return tree_parts


def _is_tree(d: Definition) -> bool:
    """Whether some object in a definition has no index."""
    if d[0] in (NODE, VARIABLE):
        return d[2] is None
    return d[0] == CONTAINER and any(map(_is_tree, d[4]))


def _leaf_paths(d: Definition, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if d[0] in (VARIABLE, ARRAY):
        yield path
    elif d[0] in (NODE, CONTAINER):
        for name, child in zip(*children_of(d)):
            yield from _leaf_paths(child, (*path, name))


def _gather(d: Definition, found: list[Any]) -> None:
    if d[0] == REFERENCE:
        found.append(NodeRef(d[1]))
    elif d[0] == VARIABLE:
        found.append(VariableDef(d[1], d[2]))
    elif d[0] == ARRAY:
        found.append(ArrayAttr())
    elif d[0] != OTHER:
        found.append(NodeDef(d[1], d[2] if d[0] == NODE else None))
        for child in children_of(d)[1]:
            _gather(child, found)
