"""An immutable nested dict that is a pytree, and functions that work on both kinds of dict.

`init` and `apply` return plain dicts. FrozenDicts occur as hashable defaults (`variable_axes`), as dicts assigned in
`setup`, and in older checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import jax

from sonde.flax.serialization import register_mapping

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(Mapping[K, V]):
    """An immutable mapping; dicts inside it are frozen when they are read.

    Example:
        >>> d = FrozenDict({"a": {"b": 1}})
        >>> d["a"]["b"], d.copy({"c": 2}).unfreeze()
        (1, {'a': {'b': 1}, 'c': 2})
    """

    __slots__ = ("_dict", "_hash")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._dict: dict[K, V] = _thawed(dict(*args, **kwargs))
        self._hash: int | None = None

    def __getitem__(self, key: K) -> V:
        value = self._dict[key]
        return FrozenDict(value) if isinstance(value, dict) else value  # pyright: ignore[reportReturnType]

    def __setitem__(self, key: K, value: V) -> None:
        raise ValueError(f"a FrozenDict cannot be changed: use d.copy({{{key!r}: value}}) to get one with {key!r} set")

    def __contains__(self, key: object) -> bool:
        return key in self._dict

    def __iter__(self) -> Iterator[K]:
        return iter(self._dict)

    def __len__(self) -> int:
        return len(self._dict)

    def __hash__(self) -> int:
        if self._hash is None:
            # Combined without order, because two dicts are equal whatever the order of their entries.
            total = 0
            for item in self.items():
                total ^= hash(item)
            self._hash = total
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, FrozenDict):
            return self._dict == other._dict
        return isinstance(other, Mapping) and self._dict == _thawed(dict(other))

    def __repr__(self) -> str:
        return f"FrozenDict({pretty_repr(self._dict)})"

    def __reduce__(self) -> Any:
        return FrozenDict, (self.unfreeze(),)

    def copy(self, add_or_replace: Mapping[K, V] | None = None) -> FrozenDict[K, V]:
        """A FrozenDict with some entries added or replaced."""
        return FrozenDict({**self._dict, **unfreeze(add_or_replace or {})})

    def pop(self, key: K) -> tuple[FrozenDict[K, V], V]:
        """A FrozenDict without one entry, and the value of that entry."""
        value = self[key]
        return FrozenDict({k: v for k, v in self._dict.items() if k != key}), value

    def unfreeze(self) -> dict[K, V]:
        """A plain nested dict that may be changed freely."""
        return _thawed(self._dict)

    def pretty_repr(self, num_spaces: int = 4) -> str:
        """The nested entries, one per line."""
        return pretty_repr(self._dict, num_spaces)


def _thawed(value: object) -> Any:
    if isinstance(value, FrozenDict):
        value = value._dict
    return {k: _thawed(v) for k, v in value.items()} if isinstance(value, dict) else value


def freeze(xs: Mapping[Any, Any]) -> FrozenDict[Any, Any]:
    """Freezes a nested dict.

    Example:
        >>> freeze({"a": 1})
        FrozenDict({
            a: 1,
        })
    """
    return FrozenDict(xs)


def unfreeze(x: Mapping[Any, Any]) -> dict[Any, Any]:
    """A plain nested dict with the entries of a FrozenDict or dict; always a copy of the dicts, never of the leaves.

    Example:
        >>> unfreeze(freeze({"a": {"b": 1}}))
        {'a': {'b': 1}}
    """
    return _thawed(x if isinstance(x, (FrozenDict, dict)) else dict(x))


def copy(x: FrozenDict[K, V] | dict[K, V], add_or_replace: Mapping[Any, Any] | None = None) -> Any:
    """A copy of the same kind of dict, with some entries added or replaced."""
    if isinstance(x, FrozenDict):
        return x.copy(add_or_replace)
    if isinstance(x, dict):
        return {**_thawed(x), **(add_or_replace or {})}
    raise TypeError(f"copy needs a FrozenDict or a dict, got {x!r} of type {type(x).__name__}")


def pop(x: FrozenDict[K, V] | dict[K, V], key: K) -> tuple[Any, Any]:
    """The same kind of dict without one entry, and the value of that entry; `x` stays as it is."""
    if isinstance(x, FrozenDict):
        return x.pop(key)
    if isinstance(x, dict):
        remaining = _thawed(x)
        return remaining, remaining.pop(key)
    raise TypeError(f"pop needs a FrozenDict or a dict, got {x!r} of type {type(x).__name__}")


def pretty_repr(x: object, num_spaces: int = 4) -> str:
    """The entries of a nested dict, one per line."""
    if isinstance(x, FrozenDict):
        x = x._dict
    if not isinstance(x, dict):
        return repr(x)
    if not x:
        return "{}"
    pad = " " * num_spaces
    lines = [f"{k}: {pretty_repr(v, num_spaces)},".replace("\n", f"\n{pad}") for k, v in x.items()]
    return "{\n" + "".join(f"{pad}{line}\n" for line in lines) + "}"


def _flatten_with_keys(d: FrozenDict[Any, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    keys = tuple(sorted(d._dict))
    return tuple((jax.tree_util.DictKey(k), d._dict[k]) for k in keys), keys


def _unflatten(keys: tuple[Any, ...], values: Iterable[Any]) -> FrozenDict[Any, Any]:
    # JAX may pass placeholders that must not be inspected, so skip the copy that the constructor makes.
    frozen = object.__new__(FrozenDict)
    frozen._dict = dict(zip(keys, values))
    frozen._hash = None
    return frozen


jax.tree_util.register_pytree_with_keys(FrozenDict, _flatten_with_keys, _unflatten)


register_mapping(FrozenDict)
