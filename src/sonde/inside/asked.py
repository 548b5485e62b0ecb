"""What the nested captures of a thread ask to see, put into force and taken back."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from types import FunctionType

from sonde.inside.marks import Depths, FunctionMarks
from sonde.inside.swapping import Session, live_functions


class Request:
    """What one `inside=` asks for. The same object for the same things, so that what was compiled for it is found.

    Attributes:
        functions: The functions whose variables are sites.
        expressions: Whether the values of calls and operators are, too.
    """

    __slots__ = ("__weakref__", "expressions", "functions")

    def __init__(self, functions: frozenset[FunctionMarks], expressions: bool) -> None:
        self.functions = functions
        self.expressions = expressions

    def nested_in(self, outer: Asked | None, depth: int) -> Asked:
        """What is asked for when this is the request of the capture at `depth`."""
        return _asked((*(outer.requests if outer is not None else ()), (depth, self)))


_requests: weakref.WeakValueDictionary[tuple[frozenset[FunctionMarks], bool], Request] = weakref.WeakValueDictionary()
_nested: weakref.WeakValueDictionary[tuple[tuple[int, Request], ...], Asked] = weakref.WeakValueDictionary()


def request(functions: frozenset[FunctionMarks], expressions: bool) -> Request:
    """The request for these functions."""
    key = (functions, expressions)
    found = _requests.get(key)
    if found is None:
        found = _requests[key] = Request(*key)
    return found


def joined(requests: Sequence[Request]) -> Request:
    """One request for everything that several ask for."""
    return request(
        frozenset[FunctionMarks]().union(*(r.functions for r in requests)), any(r.expressions for r in requests)
    )


class _Sessions(threading.local):
    def __init__(self) -> None:
        self.open: list[tuple[Asked, Session]] = []


_sessions = _Sessions()


class Asked:
    """The requests of the captures that run in a thread.

    Attributes:
        requests: Each with the depth of its capture, the outermost first.
    """

    __slots__ = ("__weakref__", "_depths", "_functions", "requests")

    def __init__(self, requests: tuple[tuple[int, Request], ...]) -> None:
        self.requests = requests
        self._depths: dict[FunctionMarks, Depths | None] = {}
        self._functions = frozenset[FunctionMarks]().union(*(r.functions for _, r in requests))

    def depths_of(self, function: FunctionMarks) -> Depths | None:
        """Which captures see the sites of a function; None if none does."""
        try:
            return self._depths[function]
        except KeyError:
            names = [(depth, r.expressions) for depth, r in self.requests if function in r.functions]
            found = Depths(frozenset(d for d, _ in names), frozenset(d for d, deep in names if deep)) if names else None
            self._depths[function] = found
            return found

    def install(self) -> None:
        """Puts marked code in the place of what is asked for."""
        if _sessions.open and _sessions.open[-1][0] is self:
            _sessions.open[-1][1].depth += 1
            return
        session = Session()
        _sessions.open.append((self, session))
        try:
            for function, marks in live_functions(self._functions):
                session.swap(function, marks, bool(self.depths_of(marks).parts))  # pyright: ignore
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Puts the old code back."""
        asked, session = _sessions.open[-1]
        assert asked is self
        session.depth -= 1
        if session.depth == 0:
            _sessions.open.pop()
            session.end()

    def adopt(self, function: FunctionMarks, made: FunctionType) -> None:
        """Takes note of a function object that marked code has made, in all runs that ask for it."""
        for asked, session in _sessions.open:
            depths = asked.depths_of(function)
            if depths is not None:
                session.swap(made, function, bool(depths.parts))


def _asked(requests: tuple[tuple[int, Request], ...]) -> Asked:
    found = _nested.get(requests)
    if found is None:
        found = _nested[requests] = Asked(requests)
    return found
