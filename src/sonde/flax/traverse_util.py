"""Nested dicts and their paths, with the names of `flax.traverse_util`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

__all__ = ["empty_node", "flatten_dict", "path_aware_map", "unflatten_dict"]

Path = tuple[Any, ...]


class _EmptyNode:
    """Represents a dict without entries."""

    def __repr__(self) -> str:
        return "_EmptyNode()"


empty_node = _EmptyNode()


def flatten_dict(
    xs: Mapping[Any, Any],
    keep_empty_nodes: bool = False,
    is_leaf: Callable[[Path, Any], bool] | None = None,
    sep: str | None = None,
) -> dict[Any, Any]:
    """The leaves of a nested dict by path.

    Args:
        xs: The dict.
        keep_empty_nodes: Whether a dict without entries is kept, as `empty_node`.
        is_leaf: A function of a path and a value that says whether to stop there.
        sep: Joins the keys of a path to a string; None leaves paths as tuples.

    Example:
        >>> flatten_dict({"a": {"b": 1, "c": 2}}, sep="/")
        {'a/b': 1, 'a/c': 2}
    """
    if not isinstance(xs, Mapping):
        raise AssertionError(f"flatten_dict takes a dict, got a {type(xs).__name__}.")
    if is_leaf is not None and is_leaf((), xs):
        return {() if sep is None else "": xs}
    leaves = leaves_with_paths(xs, is_leaf, keep_empty_nodes)
    return {path if sep is None else sep.join(path): leaf for path, leaf in leaves}


def leaves_with_paths(
    xs: Mapping[Any, Any], is_leaf: Callable[[Path, Any], bool] | None = None, keep_empty: bool = False, at: Path = ()
) -> Iterator[tuple[Path, Any]]:
    """Pairs of path and leaf of a nested mapping; with `keep_empty`, also of `empty_node` for mappings without entries.

    Example:
        >>> list(leaves_with_paths({"a": {"b": 1}, "c": {}}))
        [(('a', 'b'), 1)]
    """
    for key, value in xs.items():
        path = (*at, key)
        if not isinstance(value, Mapping) or (is_leaf is not None and is_leaf(path, value)):
            yield path, value
        elif value:
            yield from leaves_with_paths(value, is_leaf, keep_empty, path)
        elif keep_empty:
            yield path, empty_node


def unflatten_dict(xs: Mapping[Any, Any] | Iterable[tuple[Any, Any]], sep: str | None = None) -> dict[Any, Any]:
    """The nested dict with these leaves at these paths.

    Args:
        xs: Leaves by path: a dict, or pairs.
        sep: What joins the keys of a path, if paths are strings.

    Example:
        >>> unflatten_dict({("a", "b"): 1, ("c",): empty_node})
        {'a': {'b': 1}, 'c': {}}
    """
    nested: dict[Any, Any] = {}
    pairs: Any = xs.items() if isinstance(xs, Mapping) else xs
    for key, value in pairs:
        path = key if sep is None else key.split(sep)
        inner = nested
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = {} if value is empty_node else value
    return nested


def path_aware_map(f: Callable[[Path, Any], Any], nested_dict: Mapping[Any, Any]) -> dict[Any, Any]:
    """A nested dict with `f(path, leaf)` in place of every leaf.

    Example:
        >>> path_aware_map(lambda path, x: x if "bias" in path else 2 * x, {"dense": {"bias": 1, "kernel": 2}})
        {'dense': {'bias': 1, 'kernel': 4}}
    """
    flat = flatten_dict(nested_dict, keep_empty_nodes=True)
    return unflatten_dict({path: x if x is empty_node else f(path, x) for path, x in flat.items()})
