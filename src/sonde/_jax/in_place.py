"""Changes to functions and tables of JAX that are undone when the last capture ends."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

__all__ = ["Change", "InPlace"]


class Change(NamedTuple):
    """A replacement for a function of JAX, which is an attribute or an entry of a table."""

    owner: Any
    name: Any
    new: Any


_MISSING = object()


class InPlace:
    """Changes that are in place while it is entered. One object serves all threads."""

    def __init__(self, *changes: Change) -> None:
        self.changes: tuple[Change, ...] = ()
        self._lock = threading.Lock()
        self._users = 0
        self._make: list[Callable[[], Any]] = []
        self._undo: list[Callable[[], Any]] = []
        self.add(*changes)

    def add(self, *changes: Change) -> None:
        """Adds changes; they are in place when it is entered again."""
        with self._lock:
            self.changes += changes
            self._undo += _steps([Change(owner, name, _own(owner, name)) for owner, name, _ in changes])
            self._make += _steps(changes)

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            try:
                for step in self._make:  # even if others have entered: an interrupt may have cut their steps short
                    step()
            except BaseException:
                self._leave()
                raise

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._leave()

    def _leave(self) -> None:
        self._users -= 1
        if self._users == 0:
            for step in self._undo:
                step()


def _table(owner: Any) -> Any:
    """The dict that holds the attributes or entries of an owner; None for a class, which needs `setattr`."""
    return owner if isinstance(owner, dict) else vars(owner) if isinstance(owner, ModuleType) else None


def _own(owner: Any, name: Any) -> Any:
    """The owner's own attribute or entry; an inherited method does not count."""
    table = _table(owner)
    return (vars(owner) if table is None else table).get(name, _MISSING)


def _steps(changes: Iterable[Change]) -> Iterator[Callable[[], Any]]:
    """Functions that make some changes: one per dict, to save time, since every capture makes them."""
    of_tables: dict[int, dict[Any, Any]] = {}
    for owner, name, value in changes:
        table = _table(owner)
        if table is None:
            yield functools.partial(*((delattr, owner, name) if value is _MISSING else (setattr, owner, name, value)))
        elif value is _MISSING:
            yield functools.partial(table.pop, name, None)
        elif id(table) in of_tables:
            of_tables[id(table)][name] = value
        else:
            of_tables[id(table)] = {name: value}
            yield functools.partial(table.update, of_tables[id(table)])
