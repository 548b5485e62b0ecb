"""Changes to functions and tables of JAX that are undone when the last capture ends."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Change", "InPlace"]


class Change(NamedTuple):
    """A function of JAX and the one in its place: an attribute, or an entry of a table."""

    owner: Any
    name: Any
    new: Any


_MISSING = object()
Put = tuple[Callable[[Any, Any], Any], Any, Any]  # called with the name and the value after it


class InPlace:
    """Changes that are in place while it is entered. One object serves all threads."""

    def __init__(self, *changes: Change) -> None:
        self.changes = changes
        self._lock = threading.Lock()
        self._users = 0
        self._new = [_put(*change) for change in changes]
        self._plain = [_put(owner, name, _get(owner, name)) for owner, name, _ in changes]

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            for put, name, value in self._new:  # also if others are there: an interrupt may have cut them short
                put(name, value)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for put, name, value in self._plain:
                    put(name, value)


def _get(owner: Any, name: Any) -> Any:
    """The owner's own attribute or entry; an inherited method does not count."""
    return owner.get(name, _MISSING) if isinstance(owner, dict) else vars(owner).get(name, _MISSING)


def _put(owner: Any, name: Any, value: Any) -> Put:
    """How an attribute or an entry gets a value, or goes. Every capture does that, so it is found out once."""
    if value is not _MISSING:
        return owner.__setitem__ if isinstance(owner, dict) else functools.partial(setattr, owner), name, value
    return owner.pop if isinstance(owner, dict) else lambda name, _: delattr(owner, name), name, None
