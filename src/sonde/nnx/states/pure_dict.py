"""States as plain nested dicts of arrays, the form that checkpoints are written in.

Formats such as msgpack turn integer keys into strings; `restore_int_paths` turns them back, and
`replace_by_pure_dict` accepts both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sonde.nnx.states import traversals
from sonde.nnx.states.state import State, to_flat_state
from sonde.nnx.variable.variable import Variable


def _value_of(leaf: Any) -> Any:
    return leaf.get_value() if isinstance(leaf, Variable) else leaf


def to_pure_dict(state: Mapping[Any, Any], extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    """Nested dicts with the values of a state.

    Args:
        state: the state.
        extract_fn: what to store for a leaf; the value of a Variable by default.

    Example:
        >>> from sonde import nnx
        >>> nnx.to_pure_dict(nnx.State({"layer": {"w": nnx.Param(1.0)}}))
        {'layer': {'w': 1.0}}
    """
    extract = extract_fn or _value_of
    return traversals.unflatten_mapping((path, extract(leaf)) for path, leaf in to_flat_state(state))


def restore_int_paths(pure_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """Nested dicts with keys such as "0" turned into integers."""
    return {
        int(key) if isinstance(key, str) and key.isdigit() else key: restore_int_paths(value)
        if isinstance(value, Mapping)
        else value
        for key, value in pure_dict.items()
    }


def _replaced(leaf: Any, value: Any) -> Any:
    return leaf.replace(value) if isinstance(leaf, Variable) else value


def replace_by_pure_dict(
    state: State[Any, Any], pure_dict: Mapping[Any, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    """Puts the values of nested dicts into a state, in place; other leaves stay.

    Args:
        state: the state to change.
        pure_dict: nested dicts, as `to_pure_dict` makes them.
        replace_fn: makes the new leaf from the old one and the value.

    Raises:
        ValueError: the dicts have a path that the state does not. Nothing is changed then.
    """
    replace = replace_fn or _replaced
    known = {tuple(map(str, path)): (path, leaf) for path, leaf in to_flat_state(state)}
    replacements = []
    for path, value in traversals.flatten_mapping(pure_dict).items():
        if tuple(map(str, path)) not in known:
            raise ValueError(
                f"the state has no leaf at {'/'.join(map(str, path))}, which pure_dict has. It has {len(known)} "
                f"leaves, such as {', '.join('/'.join(p) for p in list(known)[:5])}."
            )
        replacements.append((*known[tuple(map(str, path))], value))
    for path, leaf, value in replacements:
        node: Any = state
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = replace(leaf, value)
