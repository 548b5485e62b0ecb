"""Remembering what was found out about a jaxpr, as long as it lives."""

from __future__ import annotations

import weakref
from typing import Any

from sonde.core.keeping import Bounded

_MOST = 64  # ways to look at one jaxpr


class JaxprCache:
    """A dict from jaxprs, by identity, to anything; an entry is gone when the jaxpr is."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref, dict[Any, Any]]] = {}

    def of(self, jaxpr: Any) -> dict[Any, Any]:
        """The dict that belongs to a jaxpr."""
        key = id(jaxpr)
        entry = self._entries.get(key)
        if entry is None:
            gone = weakref.ref(jaxpr, lambda _, entries=self._entries: entries.pop(key, None))
            entry = self._entries[key] = (gone, Bounded(_MOST))
        return entry[1]
