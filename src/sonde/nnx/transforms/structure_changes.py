"""Changes of structure: what a function did to the attributes of its arguments, and how the originals follow.

Inside a transform a function works on copies. `Before` remembers the attributes of the copies; afterwards it finds the
nodes whose attributes are new, replaced, removed, or have other static values. An *edit* is the new definition of such
a node: arguments and their parts are references in it, new objects are spelled out. `replay` gives the caller's node
those attributes. Edits are known when the function is traced, so calls without any pay nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from sonde.nnx.modules.pytree import Pytree
from sonde.nnx.structure.build import build
from sonde.nnx.structure.definitions import Definition, flatten_once
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, kind_of
from sonde.nnx.structure.walk import Walk, walk
from sonde.nnx.variable.array_references import is_reference
from sonde.nnx.variable.variable import Variable

Contents = tuple[list[Any], list[Any]]
"""What the plain containers of a node hold: their classes and keys, and their elements."""


class Before:
    """The attributes of nodes before a function ran on them."""

    __slots__ = ("_known", "_looks")

    def __init__(self, known: Mapping[int, Any]):
        self._known = known
        self._looks = [(x, x._structure(), contents(x)) for x in known.values() if isinstance(x, Pytree)]

    def edits(self, verb: str) -> tuple[list[Walk], dict[int, int]]:
        """A walk through each node that changed, and the indices of all objects visited."""
        indices = {id(x): index for index, x in self._known.items()}
        changed = [node for node, structure, held in self._looks if _differs(node, structure, held)]
        return [walk(node, graph=True, verb=verb, numbers=True, seen=indices, again=True) for node in changed], indices

    def put_back(self, carried: Container[int]) -> None:
        """Where a new Variable has replaced one, puts the old one back, with the new one's value.

        A loop's carry keeps its form; replacing a Variable by one of the same kind does not change it.

        Args:
            carried: The identities of the Variables that may be replaced.
        """
        replaced: list[tuple[Pytree, Any, Variable[Any], Variable[Any]]] = []
        for node, (layout, data, _), _ in self._looks:
            now_layout, values_now, _ = node._structure()
            if now_layout is layout:
                replaced += [
                    (node, name, a, b)
                    for name, a, b in zip(layout.data, data, values_now)
                    if a is not b and id(a) in carried and isinstance(a, Variable) and _same_kind(a, b)
                ]
        old_ids, new_ids = {id(a) for _, _, a, _ in replaced}, {id(b) for *_, b in replaced}
        # If two Variables were exchanged or one is now at two paths, the structure did change, and nothing is put back.
        shared = {id(x) for x in self._known.values()} & new_ids - old_ids  # it is also at its own path
        if len(new_ids) < len(replaced) or len(old_ids) < len(replaced) or shared:
            return
        for (node, name, variable, _), value in zip(replaced, [b._raw_value for *_, b in replaced]):
            variable.set_raw_value(value)
            node._set_child(name, variable)

    def put_back_arrays(self, numbers: Mapping[int, int]) -> dict[int, Any]:
        """Takes new arrays that have replaced others out again; the others return.

        Args:
            numbers: Of the arrays that may be replaced, by identity.

        Returns:
            The new arrays by those numbers.
        """
        new_arrays: dict[int, Any] = {}
        for node, (layout, data, _), _ in self._looks:
            now_layout, values_now, _ = node._structure()
            if now_layout is not layout:
                continue
            for name, a, b in zip(layout.data, data, values_now):
                if a is not b and id(a) in numbers and kind_of(b) == ARRAY and not is_reference(b):
                    new_arrays[numbers[id(a)]] = b
                    node._set_child(name, a)
        return new_arrays


def _same_kind(a: Variable[Any], b: Any) -> bool:
    return type(a) is type(b) and a._metadata == b._metadata


def _differs(node: Pytree, structure: tuple[Any, ...], held: Contents | None) -> bool:
    (layout, data, static), (old_layout, old_data, old_static) = node._structure(), structure
    if layout is not old_layout or not all(a is b for a, b in zip(data, old_data)):
        return True
    if not all(_same(a, b) for a, b in zip(static, old_static)):
        return True
    return held is not None and not same_contents(contents(node), held)


def _same(a: object, b: object) -> bool:
    if a is b:
        return True
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # `==` of a user's class may raise: then they are not known to be equal
        return False


def new_data(edit: Definition, leaves: Iterator[Any], known: dict[Any, Any]) -> list[Any]:
    """The data attributes that an edit gives; see `replay`."""
    return [build(child, leaves, known=known) for child in edit[5]]


def replay(edit: Definition, leaves: Iterator[Any], known: dict[Any, Any]) -> None:
    """Gives a node the attributes of an edit.

    Args:
        edit: The definition of a node.
        leaves: The leaves of new objects; the edit takes as many as it needs.
        known: Objects by index; those that are made are added.
    """
    _, _, index, layout, static, *_ = edit
    known[index]._become(layout, new_data(edit, leaves, known), static)


def contents(node: Pytree) -> Contents | None:
    """What the plain containers of a node hold."""
    todo = [value for value in node._structure()[1] if kind_of(value) == CONTAINER and value is not None]
    if not todo:
        return None
    frames: list[Any] = []
    elements: list[Any] = []
    while todo:
        value = todo.pop()
        if kind_of(value) == CONTAINER and value is not None:
            keys, children, _ = flatten_once(value)
            frames.append((type(value), keys))
            todo += children
        else:
            elements.append(value)
    return frames, elements


def same_contents(now: Contents | None, before: Contents) -> bool:
    """Whether containers hold the same elements."""
    return now is not None and now[0] == before[0] and all(a is b for a, b in zip(now[1], before[1]))
