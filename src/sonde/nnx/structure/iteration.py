"""Iterating over a model: everything in it, its Modules, its children, its duplicates.

Order: children before their parent, siblings in the order of states (integers, then names).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sonde.nnx.states.filters import Filter, PathParts, to_predicate
from sonde.nnx.structure.definitions import values_below
from sonde.nnx.structure.mode import resolve
from sonde.nnx.structure.value_kinds import CONTAINER, NODE, is_object, kind_of
from sonde.nnx.structure.walk import not_a_tree, walk


def iter_graph(node: object, /, *, graph: bool | None = None) -> Iterator[tuple[PathParts, Any]]:
    """Pairs of path and value for everything in a model, the model itself last.

    Args:
        node: A Module, any other node, or a pytree of them.
        graph: True allows shared references (each is visited once) and shows static attributes; False needs a tree and
            shows what JAX sees. None: the current mode.

    Example:
        >>> from sonde import nnx
        >>> [path for path, _ in nnx.iter_graph(nnx.Dict(w=nnx.Param(1.0), n=3))]
        [('n',), ('w',), ()]
    """
    pairs: list[tuple[PathParts, Any]] = []
    walk(node, graph=resolve(graph), verb="iter_graph", everything=pairs)
    return iter(pairs)


def iter_nodes(node: object, *, graph: bool | None, verb: str) -> Iterator[tuple[PathParts, Any]]:
    """Pairs of path and node for every Pytree and Module in a model, children first."""
    return iter(walk(node, graph=resolve(graph), verb=verb).nodes)


def iter_children(node: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Any, Any]]:
    """Pairs of name and value for the nodes and Variables right below a node.

    Example:
        >>> from sonde import nnx
        >>> [name for name, _ in nnx.iter_children(nnx.Dict(w=nnx.Param(1.0), n=3))]
        ['w']
    """
    kind = kind_of(node)
    if kind not in (NODE, CONTAINER) or node is None:
        raise TypeError(f"iter_children takes a node or a container, got {type(node).__name__}.")
    if kind == NODE and not (node._is_pytree or resolve(graph)):
        raise not_a_tree(node, (), "iter_children")
    for name, value in zip(*values_below(node)):
        if is_object(value):
            yield name, value


def find_duplicates(node: object, /, *, only: Filter = ...) -> list[list[PathParts]]:
    """Groups of paths at which the same node or Variable is found.

    Args:
        node: A Module, any other node, or a pytree of them.
        only: Which nodes and Variables to look at.

    Example:
        >>> from sonde import nnx
        >>> w = nnx.Param(1.0)
        >>> nnx.find_duplicates(nnx.Dict(a=w, b=w))
        [[('a',), ('b',)]]
    """
    matches = to_predicate(only)
    paths_of: dict[int, list[PathParts]] = {}
    opened: set[int] = set()

    def look(value: object, path: PathParts) -> None:
        if is_object(value):
            if matches(path, value):
                paths_of.setdefault(id(value), []).append(path)
            if id(value) in opened:
                return
            opened.add(id(value))
        for name, child in zip(*values_below(value)):
            look(child, (*path, name))

    look(node, ())
    return [paths for paths in paths_of.values() if len(paths) > 1]
