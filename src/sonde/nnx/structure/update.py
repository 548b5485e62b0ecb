"""Changing a model in place: `update` puts the leaves of States into it, `set_metadata` changes its Variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sonde._jax import trace_level
from sonde.nnx.modules.pytree import attributes
from sonde.nnx.states.filters import Filter, PathParts
from sonde.nnx.states.state import FlatState, State, merge_state, select_flat
from sonde.nnx.states.traversals import show_path
from sonde.nnx.structure.definitions import values_below
from sonde.nnx.structure.split_merge import lone_leaf, state_in
from sonde.nnx.structure.value_kinds import CONTAINER, NODE, kind_of
from sonde.nnx.structure.walk import walk
from sonde.nnx.variable.array_references import is_reference
from sonde.nnx.variable.variable import Variable, _set_value


def update(node: object, state: object, /, *states: Any) -> None:
    """Puts the leaves of States into a model, in place.

    A Variable takes over the value and metadata of the Variable (or the bare value) at its path; other leaves are
    replaced. Nothing is changed if something does not fit.

    Args:
        node: The object to change.
        state: A State, or nested dicts.
        *states: More of them.

    Raises:
        ValueError: A path leads into something that cannot be changed.
        TraceContextError: A Variable was made at another trace level.
    """
    if isinstance(node, Variable):
        return _write(node, lone_leaf((state, *states)) if states else state)
    state = merge_state(*map(state_in, (state, *states))) if states else state_in(state)
    if isinstance(state, FlatState):
        state = state.to_nested_state()
    if not isinstance(state, Mapping):
        raise TypeError(f"update takes a State or nested dicts, got {type(state).__name__}.")
    writes: list[tuple[Variable[Any], Any]] = []
    sets: list[tuple[Any, Any, Any]] = []
    stores: list[tuple[Any, Any]] = []
    # Planned first and done afterwards: half an update would be worse than none.
    _plan_update(node, state, (), writes, sets, stores)
    # All checks before the first write, so that an error changes nothing.
    level = trace_level()
    for variable, _ in writes:
        if variable._level is not level:
            variable._check_level()
    for parent, key, value in sets:
        _set_child(parent, key, value)
    for reference, value in stores:
        reference[...] = value
    for variable, value in writes:
        _write(variable, value)
    return None


def _write(variable: Variable[Any], value: object) -> None:
    if not isinstance(value, Variable):
        variable.set_raw_value(value)
    elif variable._metadata is value._metadata and not value._metadata.by_reference:
        _set_value(variable, value._raw_value)  # the common case of `update_from_state`
    else:
        variable.update_from_state(value)


def _plan_update(
    node: object, mapping: Mapping[Any, Any], path: PathParts, writes: list[Any], sets: list[Any], stores: list[Any]
) -> None:
    """Notes what an update writes to: Variables, other leaves, and array references."""
    children = _children(node, path)
    for key, value in (mapping.raw_mapping if isinstance(mapping, State) else mapping).items():
        child = children.get(key, _NOTHING)
        if isinstance(child, Variable):
            writes.append((child, value))
        elif is_reference(child):
            if child is not value:
                stores.append((child, value))
        elif isinstance(value, Mapping) and child is not None and kind_of(child) in (NODE, CONTAINER):
            _plan_update(child, value, (*path, key), writes, sets, stores)
        else:
            if not can_set_child(node):
                raise ValueError(
                    f"Cannot update {show_path((*path, key))}: its parent is a {type(node).__name__}, which cannot be "
                    f"changed in place. Hold the array in a Variable, or replace the whole {type(node).__name__}."
                )
            sets.append((node, key, value._mapping if isinstance(value, State) else value))


_NOTHING: Any = type("_Nothing", (), {})()


def _children(node: Any, path: PathParts) -> Mapping[Any, Any]:
    """What is right below a node or container, by key."""
    kind = kind_of(node)
    if kind == NODE:
        if node._only_attributes:
            return attributes(node)
        layout, data, static = node._structure()
        return dict(zip(layout.data_then_static, (*data, *static)))
    if kind == CONTAINER and node is not None:
        return dict(zip(*values_below(node)))
    raise ValueError(f"Cannot look into {show_path(path)}: a {type(node).__name__} has no entries.")


def can_set_child(node: object) -> bool:
    """Whether entries of a node or container can be replaced in place."""
    return kind_of(node) == NODE or isinstance(node, (list, dict, State))


def _set_child(node: Any, key: Any, value: Any) -> None:
    if kind_of(node) == NODE:
        node._set_child(key, value)
    else:
        node[key] = value


def set_metadata(node: object, /, *, only: Filter = Variable, **metadata: Any) -> None:
    """Sets metadata of all Variables of a model, in place.

    Args:
        node: A Module, any other node, or a pytree of them.
        only: Which Variables.
        **metadata: The entries.
    """
    walked = walk(node, graph=True, verb="set_metadata")
    (chosen,) = select_flat(walked.flat(), (only,))
    for variable in chosen.leaves:
        if isinstance(variable, Variable):
            variable.set_metadata(**metadata)
