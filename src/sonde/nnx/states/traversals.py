"""Nested mappings as flat ones and back.

Keys of one level may be strings and integers; integers sort before strings.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from sonde.flax.traverse_util import empty_node as empty_node
from sonde.flax.traverse_util import leaves_with_paths, unflatten_dict

IsLeaf = Callable[[tuple[Any, ...], Any], bool]


def sorted_keys(keys: Iterable[Any]) -> list[Any]:
    """Keys in the order of states: integers before strings, each by value."""
    keys = list(keys)
    try:
        return sorted(keys)
    except TypeError:
        return sorted(keys, key=_key_order)


def _key_order(key: Hashable) -> Any:
    return (0, key, "") if isinstance(key, int) else (1, 0, str(key))


def path_order(path: Sequence[Any]) -> Any:
    """A sort key for paths that may mix integers and strings."""
    return tuple(_key_order(key) for key in path)


def sort_by_path(items: Iterable[tuple[tuple[Any, ...], Any]]) -> list[tuple[tuple[Any, ...], Any]]:
    """Pairs of a path and a value, in the order of their paths."""
    return sorted(items, key=lambda item: path_order(item[0]))


def show_path(path: Sequence[Any]) -> str:
    """A path as messages show it."""
    return "/".join(map(str, path)) or "(the root)"


def flatten_to_sequence(xs: Mapping[Any, Any], /, *, is_leaf: IsLeaf | None = None) -> list[tuple[Any, Any]]:
    """Pairs of path and leaf of a nested mapping, in the mapping's order."""
    return list(leaves_with_paths(xs, is_leaf))


def flatten_mapping(
    xs: Mapping[Any, Any], /, *, keep_empty_nodes: bool = False, is_leaf: IsLeaf | None = None, sep: str | None = None
) -> dict[Any, Any]:
    """Flattens a nested mapping into one from paths to leaves.

    Args:
        xs: The nested mapping.
        keep_empty_nodes: Keep empty inner mappings, as `empty_node`.
        is_leaf: A function of (path, value) that says whether a mapping is a leaf.
        sep: Join the keys of a path with this instead of making tuples.
    """
    if not isinstance(xs, Mapping):
        raise TypeError(f"Expected a mapping, got {type(xs).__name__}.")
    leaves = leaves_with_paths(xs, is_leaf, keep_empty_nodes)
    return {path if sep is None else sep.join(map(str, path)): leaf for path, leaf in leaves}


def unflatten_mapping(
    xs: Mapping[Any, Any] | Iterable[tuple[Any, Any]], /, *, sep: str | None = None
) -> dict[Any, Any]:
    """The inverse of `flatten_mapping`: from paths (a mapping or pairs) to nested dicts."""
    return unflatten_dict(xs, sep)
