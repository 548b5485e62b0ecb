"""Changes to functions and tables of JAX that are undone when the last capture ends."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

__all__ = ["Change", "InPlace", "InterruptibleLock"]

T = TypeVar("T")


class InterruptibleLock:
    """A lock for code that an interrupt such as Ctrl-C may leave at any point.

    After `with lock:`, Python may notice an interrupt when it has locked it and has not yet entered the block: then
    nothing unlocks it, and the next block waits forever. Here a thread unlocks what it holds, however it came to. If
    that is cut short too, it does so the next time. Blocks of one lock must not be nested.
    """

    def __init__(self) -> None:
        self._lock: Any = threading.RLock()

    def run(self, block: Callable[[], T]) -> T:
        """Runs a block of code, of which only one runs at a time."""
        try:
            self._lock.acquire()
            return block()
        finally:
            while self._lock._is_owned():
                self._lock.release()


class Change(NamedTuple):
    """A replacement for a function of JAX, which is an attribute or an entry of a table."""

    owner: Any
    name: Any
    new: Any


_MISSING = object()


class InPlace:
    """Changes that are in place while somebody uses them. One object serves all threads.

    `leave` may be called again, and after an `enter` that an interrupt cut short.
    """

    def __init__(self, *changes: Change) -> None:
        self.changes: tuple[Change, ...] = ()
        self._lock = InterruptibleLock()
        self._users: set[Hashable] = set()
        self._make: list[Callable[[], Any]] = []
        self._undo: list[Callable[[], Any]] = []
        self.add(*changes)

    def add(self, *changes: Change) -> None:
        """Adds changes; they are in place from the next `enter` on."""

        def block() -> None:
            self.changes += changes
            self._undo += _steps([Change(owner, name, _own(owner, name)) for owner, name, _ in changes])
            self._make += _steps(changes)

        self._lock.run(block)

    def enter(self, user: Hashable) -> None:
        """Makes the changes."""

        def block() -> None:
            self._users.add(user)
            for step in self._make:  # even if others have entered: an interrupt may have cut their steps short
                step()

        self._lock.run(block)

    def leave(self, user: Hashable) -> None:
        """Undoes the changes, if this is the last user."""

        def block() -> None:
            self._users.discard(user)
            if not self._users:
                for step in self._undo:
                    step()

        self._lock.run(block)


def _table(owner: Any) -> Any:
    """The dict that holds the attributes or entries of an owner; None for a class, which needs `setattr`."""
    return owner if isinstance(owner, dict) else vars(owner) if isinstance(owner, ModuleType) else None


def _own(owner: Any, name: Any) -> Any:
    """The owner's own attribute or entry; an inherited method does not count."""
    table = _table(owner)
    return (vars(owner) if table is None else table).get(name, _MISSING)


def _delete(owner: Any, name: str) -> None:
    if name in vars(owner):
        delattr(owner, name)


def _steps(changes: Iterable[Change]) -> Iterator[Callable[[], Any]]:
    """Functions that make some changes: one per dict, to save time, since every capture makes them."""
    of_tables: dict[int, dict[Any, Any]] = {}
    for owner, name, value in changes:
        table = _table(owner)
        if table is None:
            yield functools.partial(*((_delete, owner, name) if value is _MISSING else (setattr, owner, name, value)))
        elif value is _MISSING:
            yield functools.partial(table.pop, name, None)
        elif id(table) in of_tables:
            of_tables[id(table)][name] = value
        else:
            of_tables[id(table)] = {name: value}
            yield functools.partial(table.update, of_tables[id(table)])
