"""The keys in paths of pytrees, as plain values."""

from __future__ import annotations

from typing import Any


def key_of(entry: Any) -> Any:
    """The key, index or attribute name that an entry of a path stands for; its text if it is not one of JAX's types.

    Example:
        >>> import jax
        >>> [(path, _)] = jax.tree_util.tree_leaves_with_path({"a": [1.5]})
        >>> [key_of(entry) for entry in path]
        ['a', 0]
    """
    return next((getattr(entry, name) for name in ("key", "idx", "name") if hasattr(entry, name)), str(entry))
