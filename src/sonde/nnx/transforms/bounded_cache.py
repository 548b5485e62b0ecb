"""A bounded cache: the entry unused for longest is dropped first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

V = TypeVar("V")

#: How many structures a transform remembers compiled code for.
PROGRAMS = 512


class Recent(Generic[V]):
    """Entries by key; the most recently used are kept."""

    def __init__(self, size: int):
        self._size = size
        self._entries: OrderedDict[Any, V] = OrderedDict()
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[V]:
        with self._lock:
            return iter(tuple(self._entries.values()))

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The entry, made if it is missing."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                return entry
        made = make()
        with self._lock:
            entry = self._entries.setdefault(key, made)
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)
        return entry
