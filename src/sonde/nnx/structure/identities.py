"""Objects by their identity: numbers for them, and objects that differ from all others, the names of `nnx.ids`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Self


class UUID:
    """Equal only to itself; a copy is a different UUID.

    Example:
        >>> import copy
        >>> from sonde.nnx import ids
        >>> one = ids.uuid()
        >>> one == one, one == ids.uuid(), one == copy.copy(one)
        (True, False, False)
    """

    def __copy__(self) -> Self:
        return type(self)()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)()


def uuid() -> UUID:
    """Makes a new UUID."""
    return UUID()


class IndexMap(dict[int, Any]):
    """Objects by number."""

    @classmethod
    def from_refmap(cls, refmap: RefMap) -> IndexMap:
        """The inverse of a RefMap."""
        return cls({index: obj for obj, index in refmap.items()})


class RefMap(MutableMapping[Any, Any]):
    """A mapping whose keys are compared by identity.

    Args:
        items: Pairs of key and value, or a mapping.
    """

    def __init__(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (), /):
        self._entries: dict[int, tuple[Any, Any]] = {}
        for key, value in items.items() if isinstance(items, Mapping) else items:
            self[key] = value

    @classmethod
    def from_indexmap(cls, indexmap: Mapping[int, Any]) -> RefMap:
        """Numbers by object."""
        return cls((obj, index) for index, obj in indexmap.items())

    def __getitem__(self, key: Any) -> Any:
        return self._entries[id(key)][1]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._entries[id(key)] = (key, value)

    def __delitem__(self, key: Any) -> None:
        del self._entries[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._entries

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def numbers(self) -> dict[int, Any]:
        """The values by the identity of their keys."""
        return {key: value for key, (_, value) in self._entries.items()}
