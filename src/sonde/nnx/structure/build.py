"""Building objects from definitions: the inverse of a walk.

`build` makes the object that a definition describes, from a list of leaves or from a State; `collect` brings the leaves
of a State into the order of the definition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sonde._jax import trace_level
from sonde.nnx.modules.pytree import _set_dict, _set_layout, _set_level, _set_stamp
from sonde.nnx.states import traversals
from sonde.nnx.states.state import FlatState, State
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure.definitions import REFERENCE, Definition, Path, children_of, count_leaves, unflatten_once
from sonde.nnx.structure.value_kinds import ARRAY, CONTAINER, NODE, OTHER, VARIABLE
from sonde.nnx.variable.variable import Variable

_INNER = (NODE, CONTAINER)


class _Misfit(Exception):
    """The entries of a state do not match the definition."""


def build(
    definition: Definition,
    leaves: Iterable[Any] | None = None,
    *,
    state: object = None,
    known: dict[Any, Any] | None = None,
    finish: Callable[[Path, Any], Any] | None = None,
    recreate: bool = True,
    prototypes: dict[int, dict[Any, Any]] | None = None,
    remember: bool = True,
) -> Any:
    """Builds the object that a definition describes.

    Args:
        definition: What `walk` made.
        leaves: In the order of the walk. A leaf that is a Variable becomes part of the object as it is; a bare value
            in place of a Variable is wrapped in a new one.
        state: Instead of `leaves`, a State or nested mapping with the leaves.
        known: Objects by index, for several definitions that share a numbering; new objects are added to it.
        finish: Called with the path and value of everything that is built, children before parents; its result
            replaces the value. Only with `leaves`.
        recreate: Whether a bare value in place of a Variable is wrapped in a new one.
        prototypes: Dicts of attributes by the identity of a node's definition, kept between calls along with the
            definition; copying a dict is cheaper than filling one.
        remember: Whether to add new objects to `known`; needed if the definition has references.

    Raises:
        ValueError: The state lacks leaves, or has leaves that the definition does not.
    """
    known = {} if known is None else known
    builder = _Builder(leaves, known, recreate, prototypes, remember)
    if finish is not None:
        return builder.make_and_finish(definition, (), finish)
    if leaves is not None:
        return builder.make(definition, None)
    if isinstance(state, FlatState):
        state = traversals.unflatten_mapping(state)
    # The quick way may fail halfway, with objects in `known` that belong to nothing.
    before = dict(known)
    try:
        return builder.make(definition, state)
    # The quick way needs exactly the entries of the definition. `collect` accepts more, and names what does not fit.
    except (KeyError, _Misfit):
        known.clear()
        known.update(before)
        return build(definition, collect(definition, state), known=known, recreate=recreate)


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class _Builder:
    """The arguments of `build`. A `source` is the part of the state for one definition; None if leaves were given."""

    leaves: dataclasses.InitVar[Iterable[Any] | None]
    known: dict[Any, Any]
    recreate: bool
    prototypes: dict[int, dict[Any, Any]] | None
    remember: bool
    from_state: bool = dataclasses.field(init=False)
    next_leaf: Callable[[], Any] = dataclasses.field(init=False)
    level: Any = dataclasses.field(init=False)

    def __post_init__(self, leaves: Iterable[Any] | None) -> None:
        self.from_state = leaves is None
        self.next_leaf = iter(leaves or ()).__next__
        self.level = trace_level()

    def make(self, d: Definition, source: Any) -> Any:
        """Makes what a definition describes."""
        tag = d[0]
        if tag == NODE:
            return self.make_node(d, source)
        if tag == VARIABLE:
            return self.make_variable(d, source)
        if tag == ARRAY:
            value = source if self.from_state else self.next_leaf()
            if len(d) == 2:
                self.known[d[1]] = value
            return value
        if tag == OTHER:
            return d[1]
        if tag == REFERENCE:
            return self.known[d[1]]
        _, cls, keys, rebuild, children, entries, n = d
        if not (self.from_state and n):
            return unflatten_once(cls, keys, rebuild, [self.make(child, None) for child in children])
        source = _plain_mapping(source, entries)
        made = [self.make(child, source[key] if count_leaves(child) else None) for key, child in zip(keys, children)]
        return unflatten_once(cls, keys, rebuild, made)

    def make_variable(self, d: Definition, source: Any) -> Any:
        """Makes a Variable; with `recreate=False`, returns a bare value as it is."""
        value = source if self.from_state else self.next_leaf()
        if self.recreate and not isinstance(value, Variable):
            value = d[1]._make(value, d[3])
        if self.remember:
            self.known[d[2]] = value
        return value

    def make_node(self, d: Definition, source: Any) -> Any:
        """Makes a Pytree or Module."""
        _, cls, index, layout, static, children, entries, n = d
        node, values = self.blank(d)
        # Known before its children are made, because they may refer back to it.
        if self.remember:
            self.known[index] = node
        from_state, make_variable = self.from_state, self.make_variable
        if from_state and n and (type(source) is not dict or len(source) != entries):
            source = _plain_mapping(source, entries)
        for name, child in zip(layout.data, children):
            tag = child[0]
            if tag == VARIABLE:  # most children are Variables
                values[name] = make_variable(child, source[name] if from_state else None)
            elif from_state and (tag == ARRAY or (tag in _INNER and child[-1])):
                values[name] = self.make(child, source[name])
            else:
                values[name] = self.make(child, None)
        if self.prototypes is not None and cls._only_attributes:
            _set_dict(node, values)
        else:
            node._fill(layout, values.values(), static)
        return node

    def blank(self, d: Definition) -> tuple[Any, dict[Any, Any]]:
        """Makes a node without attributes, and a dict for them: copying a prototype is cheaper than filling one."""
        _, cls, _, layout, static, *_ = d
        if self.prototypes is None or not cls._only_attributes:
            return cls._blank(layout, self.level), {}
        node = object.__new__(cls)  # `_blank` inlined, because a model has many nodes
        _set_layout(node, layout)
        _set_level(node, self.level)
        _set_stamp(node, 0)
        # By identity: definitions are compared by content, which would cost more than it saves.
        values = self.prototypes.get(id(d))
        if values is None:
            values = self.prototypes[id(d)] = dict.fromkeys(layout.names)
            values.update(zip(layout.static, static))
        return node, values.copy()

    def make_and_finish(self, d: Definition, path: Path, finish: Callable[[Path, Any], Any]) -> Any:
        """As `make`, with `finish` called on everything that is made."""
        tag, known = d[0], self.known
        if tag == REFERENCE:
            return known[d[1]]
        if tag == NODE:
            _, cls, index, layout, static, children, _, _ = d
            known[index] = node = cls._blank(layout, self.level)
            data, static_values = [], []
            for name, is_data, i in layout.turns:
                if is_data:
                    data.append(self.make_and_finish(children[i], (*path, name), finish))
                else:  # in a tree, `finish` does not see static attributes
                    static_values.append(static[i] if index is None else finish((*path, name), static[i]))
            node._fill(layout, data, static_values)
            known[index] = node = finish(path, node)
            return node
        if tag == CONTAINER:
            _, cls, keys, rebuild, children, _, _ = d
            made = [self.make_and_finish(child, (*path, key), finish) for key, child in zip(keys, children)]
            return finish(path, unflatten_once(cls, keys, rebuild, made))
        value = finish(path, self.make(d, None))
        if tag == VARIABLE:
            known[d[2]] = value
        return value


def restore(d: Definition, leaves: Iterator[Any], known: dict[Any, Any], outer: Mapping[int, Any]) -> Any:
    """Restores what a definition describes, reusing the objects in `outer` with the same numbers.

    Args:
        d: The definition.
        leaves: Its leaves.
        known: Objects that are done, by number; new ones are added to it.
        outer: The objects to change, by number.
    """
    if d[0] == REFERENCE:
        return known[d[1]] if d[1] in known else outer[d[1]]
    if d[0] == VARIABLE:
        leaf = next(leaves)
        known[d[2]] = variable = outer.get(d[2])
        if variable is None:
            known[d[2]] = variable = leaf if isinstance(leaf, Variable) else d[1]._make(leaf, d[3])
        elif isinstance(leaf, Variable):
            variable.update_from_state(leaf)
        else:
            variable.set_raw_value(leaf)
        return variable
    if d[0] == ARRAY:
        return next(leaves)
    if d[0] == CONTAINER:
        return unflatten_once(d[1], d[2], d[3], [restore(child, leaves, known, outer) for child in d[4]])
    if d[0] != NODE:
        return d[1]
    node = outer.get(d[2])
    known[d[2]] = target = d[1]._blank(d[3], trace_level()) if node is None else node
    data = [restore(child, leaves, known, outer) for child in d[5]]
    target._become(d[3], data, d[4])
    return target


def _plain_mapping(state: object, entries: int) -> Any:
    if type(state) is not dict:
        if isinstance(state, State):
            state = state.raw_mapping
        elif not isinstance(state, Mapping):
            raise _Misfit
    if len(state) != entries:
        raise _Misfit
    return state


def collect(definition: Definition, state: object) -> list[Any]:
    """The leaves of a state in the order that `build` needs.

    Raises:
        ValueError: The state lacks leaves, or has leaves that the definition does not.
    """
    tag = definition[0]
    if tag in (VARIABLE, ARRAY):
        return [state]
    if tag in (OTHER, REFERENCE):
        return []
    out: list[Any] = []
    missing: list[Path] = []
    surplus: list[Path] = []
    _gather(definition, state, (), out, missing, surplus)
    if missing or surplus:
        expected = definition[-1]
        parts = [f"missing: {_names(missing)}"] if missing else []
        parts += [f"not expected: {_names(surplus)}"] if surplus else []
        raise ValueError(
            f"the states do not fit the GraphDef, which has {expected} leaves ({'; '.join(parts)}). "
            f"Pass all states that nnx.split returned, each leaf once."
        )
    return out


def _gather(
    d: Definition, mapping: object, path: Path, out: list[Any], missing: list[Path], surplus: list[Path]
) -> None:
    """Sorts the leaves of a node or container into `out`, and paths that one side lacks into `missing` or `surplus`."""
    names, children = children_of(d)
    if type(mapping) is not dict:
        if isinstance(mapping, State):
            mapping = mapping.raw_mapping
        elif not isinstance(mapping, Mapping):
            missing.append(path)
            surplus.append(path)
            return
    used = 0
    for name, child in zip(names, children):
        if not count_leaves(child):
            continue
        if name not in mapping:
            missing.append((*path, name))
            continue
        used += 1
        if child[0] in (VARIABLE, ARRAY):
            out.append(mapping[name])
        else:
            _gather(child, mapping[name], (*path, name), out, missing, surplus)
    if used != len(mapping):
        _surplus(d, mapping, path, surplus)


def _surplus(d: Definition, mapping: Mapping[Any, Any], path: Path, surplus: list[Path]) -> None:
    expected_names = {
        name
        for name, child in zip(*children_of(d))
        if child[0] in (VARIABLE, ARRAY) or (child[0] in (NODE, CONTAINER) and child[-1])
    }
    for name, value in mapping.items():
        if name not in expected_names and not (isinstance(value, Mapping) and not traversals.flatten_mapping(value)):
            surplus.append((*path, name))


def _names(paths: list[Path]) -> str:
    shown = ", ".join(map(show_path, paths[:8]))
    return shown + (f" and {len(paths) - 8} more" if len(paths) > 8 else "")
