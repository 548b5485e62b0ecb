"""Changes to functions and tables of JAX that are undone when the last capture ends."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

__all__ = ["Change", "InPlace"]


class Change(NamedTuple):
    """A function of JAX and the one in its place: an attribute, or an entry of a table."""

    owner: Any
    name: Any
    new: Any


_MISSING = object()


class InPlace:
    """Changes that are in place while it is entered. One object serves all threads."""

    def __init__(self, *changes: Change) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._changes = changes
        self._plain = [_get(change.owner, change.name) for change in changes]

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                for change in self._changes:
                    _set(*change)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for change, plain in zip(self._changes, self._plain):
                    _set(change.owner, change.name, plain)


def _get(owner: Any, name: Any) -> Any:
    """The owner's own attribute or entry; an inherited method does not count."""
    return owner.get(name, _MISSING) if isinstance(owner, dict) else vars(owner).get(name, _MISSING)


def _set(owner: Any, name: Any, value: Any) -> None:
    if not isinstance(owner, dict):
        delattr(owner, name) if value is _MISSING else setattr(owner, name, value)
    elif value is _MISSING:
        owner.pop(name, None)
    else:
        owner[name] = value
