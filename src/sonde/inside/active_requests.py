"""The `inside=` requests of a thread's nested captures, and how they are installed and removed."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

from sonde.core import module_kind, scope
from sonde.inside.code_swap import Replacements, Use, live_functions, marks_of
from sonde.inside.hidden_sites import HIDING
from sonde.inside.instrumented import Depths, FunctionMarks
from sonde.inside.libraries.registry import comparing_functions

_FEW_FILES = 8  # so many are marked at once; functions of more are marked when they are called
Hook = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclasses.dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
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

    functions: frozenset[FunctionMarks]
    expressions: bool
    methods: frozenset[str] = frozenset()
    calls: frozenset[FunctionType] = frozenset()
    hooks: frozenset[Hook] = frozenset()
    named: frozenset[FunctionMarks] = frozenset()


class BoundRequest:
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

    def at(self, models: Sequence[Any]) -> BoundRequest:
        """This request for other models."""
        return BoundRequest(self.request, models)

    def nested_in(self, outer: ActiveRequests | None, depth: int) -> ActiveRequests:
        """All requests in force when this one belongs to the capture at `depth`."""
        return _KNOWN.active((*(outer.requests if outer is not None else ()), (depth, self.request)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BoundRequest)
            and self.request is other.request
            and len(self.models) == len(other.models)
            and all(a is b for a, b in zip(self.models, other.models))  # an object has one weak reference
        )

    def __hash__(self) -> int:
        return hash((id(self.request), *map(id, self.models)))


def joined(bound: Sequence[BoundRequest]) -> BoundRequest:
    """One request that combines several."""
    requests = [each.request for each in bound]
    combined = request_with(
        frozenset[FunctionMarks]().union(*(r.functions for r in requests)),
        any(r.expressions for r in requests),
        frozenset[str]().union(*(r.methods for r in requests)),
        frozenset[FunctionType]().union(*(r.calls for r in requests)),
        frozenset().union(*(r.hooks for r in requests)),
        frozenset[FunctionMarks]().union(*(r.named for r in requests)),
    )
    models = {id(model): model for each in bound for model in each.known_models()}
    return BoundRequest(combined, list(models.values()))


class ActiveRequests:
    """The requests of the captures that run in a thread.

    Attributes:
        requests: Each with the depth of its capture, the outermost first.
        functions: The functions whose variables are sites.
        makers: The functions that make them: their own variables are no sites, but what they make must be known.
        calls: The functions that are methods of modules.
        hooks: Other ways to observe calls of modules.
    """

    __slots__ = ("__weakref__", "_depths", "calls", "functions", "hooks", "makers", "requests")

    def __init__(self, requests: tuple[tuple[int, Request], ...]) -> None:
        self.requests = requests
        self._depths: dict[FunctionMarks, Depths | None] = {}
        self.functions = frozenset[FunctionMarks]().union(*(r.functions for _, r in requests))
        self.makers = frozenset(outer for f in self.functions for outer in f.outer) - self.functions
        self.calls = frozenset[FunctionType]().union(*(r.calls for _, r in requests))
        self.hooks = frozenset[Hook]().union(*(r.hooks for _, r in requests))

    def depths_of(self, function: FunctionMarks) -> Depths | None:
        """Which captures see the sites of a function; None if none does."""
        try:
            return self._depths[function]
        except KeyError:
            requesting = [(depth, r.expressions) for depth, r in self.requests if function in r.functions]
            depths = None
            if requesting:
                in_parts = frozenset(depth for depth, expressions in requesting if expressions)
                depths = Depths(frozenset(depth for depth, _ in requesting), in_parts)
            self._depths[function] = depths
            return depths

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

    def run(self, outer: Run | None) -> Run:
        """What these requests change while a session runs; `outer` is what the session around has changed."""
        return Run(self, outer)

    def use(self, function: FunctionMarks) -> Use:
        """What the code of a function is replaced for."""
        depths = self.depths_of(function)
        return "parts" if depths is not None and depths.parts else "names"


class Run:
    """What the requests of a session have changed in the functions of the process, and which marked calls are open.

    Attributes:
        requests: The requests.
        outer: The same for the session around.
        replaced: The functions whose code it has replaced.
        open_functions: The calls of marked functions that are open, the outermost first, each with its scope. Those of
            the sessions around are among them.
        open_modules: The paths of the modules whose calls are open, and what each counts from (`named_paths.py`).
        open_methods: The methods of such modules that are open.
    """

    __slots__ = ("_n_functions", "open_functions", "open_methods", "open_modules", "outer", "replaced", "requests")

    def __init__(self, requests: ActiveRequests, outer: Run | None) -> None:
        self.requests = requests
        self.outer = outer
        self.replaced = Replacements()
        self.open_functions: list[tuple[FunctionMarks, scope]] = [] if outer is None else outer.open_functions
        self.open_modules: list[tuple[tuple[str, ...], Any]] = [] if outer is None else outer.open_modules
        self.open_methods: list[tuple[Any, str]] = [] if outer is None else outer.open_methods
        self._n_functions = len(self.open_functions)

    def begin(self) -> None:
        """Replaces the code of the requested functions, unless the session around has done so for the same requests."""
        if self.outer is not None and self.outer.requests is self.requests:
            return
        HIDING.enter(self)
        functions, replaced = self.requests.functions, self.replaced
        hooks_around = {hook for run in self.outwards() if run is not self for hook in run.requests.hooks}
        waits = len({marks.filename for marks in functions}) > _FEW_FILES
        for function, marks in live_functions(functions | self.requests.makers) if functions else ():
            replaced.swap(function, marks, self.requests.use(marks), waits=waits)
        for function in comparing_functions():
            replaced.swap(function, marks_of(function), "names")
        for function in self.requests.calls:
            replaced.swap(function, marks_of(function) if functions else None, "calls")
        for hook in self.requests.hooks - hooks_around:
            replaced.hooks.enter_context(hook())

    def outwards(self) -> Iterator[Run]:
        """This one and those of the sessions around."""
        run: Run | None = self
        while run is not None:
            yield run
            run = run.outer

    def adopt(self, function: FunctionMarks, made: FunctionType) -> None:
        """Registers a function object that marked code has made, for all sessions that request it."""
        for run in self.outwards():
            if function in run.requests.functions or function in run.requests.makers:
                run.replaced.swap(made, function, run.requests.use(function))

    def end(self) -> None:
        """Puts the code back that was there before."""
        self.replaced.end()
        HIDING.leave(self)
        del self.open_functions[self._n_functions :]


class _KnownRequests:
    """Equal requests are one object, as long as it is used: programs are traced per request."""

    def __init__(self) -> None:
        self._requests: weakref.WeakValueDictionary[tuple[Any, ...], Request] = weakref.WeakValueDictionary()
        self._active: weakref.WeakValueDictionary[Any, ActiveRequests] = weakref.WeakValueDictionary()

    def request(self, parts: tuple[Any, ...]) -> Request:
        """The request with these attributes."""
        request_for = self._requests.get(parts)
        if request_for is None:
            request_for = self._requests[parts] = Request(*parts)
        return request_for

    def active(self, requests: tuple[tuple[int, Request], ...]) -> ActiveRequests:
        """Requests in force together, each with the depth of its capture."""
        together = self._active.get(requests)
        if together is None:
            together = self._active[requests] = ActiveRequests(requests)
        return together


_KNOWN = _KnownRequests()


def request_with(*parts: Any) -> Request:
    """The request with these attributes."""
    return _KNOWN.request(parts)
