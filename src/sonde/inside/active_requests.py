"""The `inside=` requests of a thread's nested captures, and how they are installed and removed."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from sonde.core import module_kind
from sonde.inside.code_swap import Session, Use, live_functions, marks_of
from sonde.inside.instrumented import Depths, FunctionMarks, open_functions
from sonde.inside.libraries.registry import comparing_functions


class Request:
    """One `inside=` request, without its models. Equal requests are one object: programs are traced per request.

    Attributes:
        functions: The functions whose variables are sites.
        expressions: Whether the values of calls and operators are sites too.
        methods: The names of the methods of modules whose arguments and results are sites.
        calls: The functions that are those methods.
        hooks: Other ways to observe calls of modules: functions that return a context manager, entered for the run.
        named: The functions that were requested by name, and not as part of a class or package.
    """

    __slots__ = ("__weakref__", "calls", "expressions", "functions", "hooks", "methods", "named")

    def __init__(
        self,
        functions: frozenset[FunctionMarks],
        expressions: bool,
        methods: frozenset[str] = frozenset(),
        calls: frozenset[FunctionType] = frozenset(),
        hooks: frozenset[Callable[[], contextlib.AbstractContextManager[Any]]] = frozenset(),
        named: frozenset[FunctionMarks] = frozenset(),
    ) -> None:
        self.functions = functions
        self.expressions = expressions
        self.methods = methods
        self.calls = calls
        self.hooks = hooks
        self.named = named


class Look:
    """One `inside=` request, and the models that it names, which are not kept alive.

    Attributes:
        request: The request. It depends on the classes of the models, not on the models.
        models: The models, if they are modules to the engine.
    """

    __slots__ = ("models", "request")

    def __init__(self, request: Request, models: Sequence[Any] = ()) -> None:
        self.request = request
        self.models = tuple(weakref.ref(model) for model in models if module_kind(model) is not None)

    @property
    def methods(self) -> frozenset[str]:
        """The names of the methods of modules whose arguments and results are sites."""
        return self.request.methods

    def known_models(self) -> list[Any]:
        """The models that still exist."""
        return [model for ref in self.models if (model := ref()) is not None]

    def at(self, models: Sequence[Any]) -> Look:
        """The same for other models."""
        return Look(self.request, models)

    def nested_in(self, outer: Asked | None, depth: int) -> Asked:
        """All requests in force when this one belongs to the capture at `depth`."""
        return _asked((*(outer.requests if outer is not None else ()), (depth, self.request)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Look)
            and self.request is other.request
            and len(self.models) == len(other.models)
            and all(a is b for a, b in zip(self.models, other.models))  # an object has one weak reference
        )

    def __hash__(self) -> int:
        return hash((id(self.request), *map(id, self.models)))


_requests: weakref.WeakValueDictionary[tuple[Any, ...], Request] = weakref.WeakValueDictionary()
_nested: weakref.WeakValueDictionary[tuple[tuple[int, Request], ...], Asked] = weakref.WeakValueDictionary()


def request(*parts: Any) -> Request:
    """The request with these attributes."""
    found = _requests.get(parts)
    if found is None:
        found = _requests[parts] = Request(*parts)
    return found


def joined(looks: Sequence[Look]) -> Look:
    """One request that combines several."""
    requests = [look.request for look in looks]
    found = request(
        frozenset[FunctionMarks]().union(*(r.functions for r in requests)),
        any(r.expressions for r in requests),
        frozenset[str]().union(*(r.methods for r in requests)),
        frozenset[FunctionType]().union(*(r.calls for r in requests)),
        frozenset().union(*(r.hooks for r in requests)),
        frozenset[FunctionMarks]().union(*(r.named for r in requests)),
    )
    models = {id(model): model for look in looks for model in look.known_models()}
    return Look(found, list(models.values()))


class _Sessions(threading.local):
    def __init__(self) -> None:
        self.open: list[tuple[Asked, Session]] = []


_sessions = _Sessions()


class Asked:
    """The requests of the captures that run in a thread.

    Attributes:
        requests: Each with the depth of its capture, the outermost first.
    """

    __slots__ = ("__weakref__", "_depths", "_functions", "_makers", "requests")

    def __init__(self, requests: tuple[tuple[int, Request], ...]) -> None:
        self.requests = requests
        self._depths: dict[FunctionMarks, Depths | None] = {}
        self._functions = frozenset[FunctionMarks]().union(*(r.functions for _, r in requests))
        # The functions that make them: their own variables are no sites, but what they make must be known.
        self._makers = frozenset(outer for f in self._functions for outer in f.outer) - self._functions

    def depths_of(self, function: FunctionMarks) -> Depths | None:
        """Which captures see the sites of a function; None if none does."""
        try:
            return self._depths[function]
        except KeyError:
            names = [(depth, r.expressions) for depth, r in self.requests if function in r.functions]
            found = Depths(frozenset(d for d, _ in names), frozenset(d for d, deep in names if deep)) if names else None
            self._depths[function] = found
            return found

    def call_depths(self, function: FunctionType) -> frozenset[int]:
        """Which captures see the calls of a function, a method of modules."""
        return frozenset(depth for depth, r in self.requests if function in r.calls)

    def hook_depths(self, hook: Callable[..., Any], method: str) -> frozenset[int]:
        """Which captures see the calls of a method of modules that are observed by a hook."""
        return frozenset(depth for depth, r in self.requests if hook in r.hooks and method in r.methods)

    def names_functions(self) -> bool:
        """Whether some functions were requested by name, and not as part of a package or model."""
        return any(r.named for _, r in self.requests)

    def names_models(self) -> bool:
        """Whether models were requested."""
        return any(r.methods for _, r in self.requests)

    def must_see(self, source: str) -> bool:
        """Whether the function on this line was requested by name, so that its marks must not be left out."""
        filename, _, line = source.rpartition(":")
        named = (f for _, r in self.requests for f in r.named if f.filename == filename)
        return any(f.function.line <= int(line) <= f.function.end for f in named)

    def install(self) -> None:
        """Replaces the code of the requested functions."""
        if _sessions.open and _sessions.open[-1][0] is self:
            return
        session = Session()
        around = {hook for asked, _ in _sessions.open for _, r in asked.requests for hook in r.hooks}
        _sessions.open.append((self, session))
        for function, marks in live_functions(self._functions | self._makers) if self._functions else ():
            session.swap(function, marks, self._use(marks))
        for function in comparing_functions():
            session.swap(function, marks_of(function), "names")
        for function in {f: None for _, r in self.requests for f in r.calls}:
            session.swap(function, marks_of(function) if self._functions else None, "calls")
        for hook in {hook for _, r in self.requests for hook in r.hooks} - around:
            session.hooks.enter_context(hook())

    def way_back(self) -> Callable[[], None]:
        """A function that puts the code back that is there now, after an `install`."""
        sessions, functions = _sessions.open, open_functions()
        n, m = len(sessions), len(functions)

        def go_back() -> None:
            while len(sessions) > n:
                sessions[-1][1].end()
                sessions.pop()
            del functions[m:]

        return go_back

    def adopt(self, function: FunctionMarks, made: FunctionType) -> None:
        """Registers a function object that marked code has made, in all runs that request it."""
        for asked, session in _sessions.open:
            if function in asked._functions or function in asked._makers:
                session.swap(made, function, asked._use(function))

    def _use(self, function: FunctionMarks) -> Use:
        depths = self.depths_of(function)
        return "parts" if depths is not None and depths.parts else "names"


def _asked(requests: tuple[tuple[int, Request], ...]) -> Asked:
    found = _nested.get(requests)
    if found is None:
        found = _nested[requests] = Asked(requests)
    return found
