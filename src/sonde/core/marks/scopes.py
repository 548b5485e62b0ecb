"""Scopes: the names around a site, with which its path begins.

Scopes are in JAX's name stack, which every equation stores relative to its own jaxpr. A function that is jitted once
and called under two scopes is therefore traced once, and its sites are found under the scope of each call; and
functions without sites, such as those of `jax.numpy`, do not depend on scopes.
"""

from __future__ import annotations

import inspect
import sys
import types
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from sonde import _jax
from sonde.core.marks.path import checked_name
from sonde.core.session.session import SESSIONS, Session, capture_state
from sonde.errors import ScopeError


class ScopeName(str):
    """A name in JAX's name stack that is part of paths, unlike those of `jax.named_scope`."""

    task: int | None = None  # the asyncio task that entered it, by identity
    entered: weakref.ref[scope] | None = None  # what entered it, if in a generator

    def path(self, before: str, depth: int) -> str:
        """The path, with a trailing slash, of what is inside this scope when the scope itself is at `before`."""
        del depth
        return f"{before}{self}/"


class LoopName(ScopeName):
    """A scope that names the loop inside it: `blocks/*`. `named_loops.py` inserts the number of an iteration."""

    def path(self, before: str, depth: int) -> str:
        """The path of what is inside this scope, without the `*`."""
        del depth
        return before + self.removesuffix("*")


# In a prefix, a part that begins with this is the scope of a function that a capture looks into.
_FUNCTION = "\0"


class FunctionName(ScopeName):
    """The scope of a function that some of the nested captures look into; others do not see it in paths."""

    depths: frozenset[int] = frozenset()

    def path(self, before: str, depth: int) -> str:
        """The path of what is inside this scope."""
        return f"{before}{_FUNCTION}{self}/" if depth in self.depths else before


class RowsName(ScopeName):
    """The scope of what an edit of some rows of named loops computes: sites in it do not exist in other rows.

    Attributes:
        rows: The rows; None if the edit is in no named loop. The handler of the edit sets them when it answers for the
            site (`plan.Supply`), before what is inside the scope is met.
    """

    rows: frozenset[tuple[int, ...]] | None = None


class ChoiceName(str):
    """The scope of the branches of a choice that all run (`Gate`). It is no part of paths.

    Attributes:
        choice: The choice.
    """

    choice: object

    @classmethod
    def of(cls, choice: object) -> ChoiceName:
        """The name for a choice."""
        name = cls("branches")
        name.choice = choice
        return name


_ONLY_SCOPES = frozenset([ScopeName])


def prefix_under(names: tuple[Any, ...], before: str, depth: int) -> str:
    """The prefix of what is inside scopes that were opened at the prefix `before`.

    A prefix is a path, with a trailing slash if not empty, that also says which of its parts are functions: the path of
    a module inside may not have them (`without_functions`).

    Args:
        names: The names of the scopes, outermost first, as JAX stores them.
        before: The prefix of the outermost.
        depth: Which of the nested captures asks; scopes of modules have another path for each.
    """
    if _ONLY_SCOPES.issuperset(map(type, names)):
        return _with_parts(before, names)
    plain: list[str] = []  # put together at once: adding one by one would take time with the square of the depth
    for name in names:
        if type(name) is ScopeName:
            plain.append(name)
        elif isinstance(name, ScopeName):
            before = name.path(_with_parts(before, plain), depth)
            plain = []
    return _with_parts(before, plain)


def _with_parts(prefix: str, parts: Sequence[str]) -> str:
    return f"{prefix}{'/'.join(parts)}/" if parts else prefix


def path_under(names: tuple[Any, ...], before: str, depth: int) -> str:
    """The path, with a trailing slash if not empty, of what is inside scopes; see `prefix_under`."""
    return prefix_under(names, before, depth).replace(_FUNCTION, "")


def without_functions(prefix: str) -> str:
    """A prefix without the scopes of functions."""
    if _FUNCTION not in prefix:
        return prefix
    return "".join(f"{part}/" for part in prefix.split("/")[:-1] if not part.startswith(_FUNCTION))


def check_scopes(name: object) -> None:
    """Raises ScopeError if a scope is open that does not belong to the running code; see `strange_scope`."""
    if (why := strange_scope()) is not None:
        raise ScopeError(f"site {name!r} runs under {why}")


def strange_scope() -> str | None:
    """The open scope, if any, that was entered by a suspended task or generator, and what to do about it.

    The name stack belongs to the thread. A waiting asyncio task and a suspended generator leave their scopes open there
    for code that runs in the meantime.
    """
    session = SESSIONS.current()
    if session is None or not session.has_suspendable_scopes:
        return None
    for opened in _jax.name_stack():
        if not isinstance(opened, ScopeName):
            continue
        # A task or generator that waits cannot close its scope, and must not name the sites of what runs instead.
        if opened.task is not None and opened.task != _current_task():
            return (
                f"scope {str(opened)!r}, which another asyncio task entered and has not left: do not await inside "
                "`with sonde.scope(...)` while a capture runs"
            )
        entered = opened.entered and opened.entered()
        if entered is not None and entered.is_suspended:
            return (
                f"scope {str(opened)!r}, which a suspended generator entered and has not left: do not yield inside "
                "`with sonde.scope(...)` while a capture runs; open the scope around each step"
            )
    return None


_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def _generator_around(session: Session) -> types.FrameType | None:
    """The frame of the generator from which a scope is entered; None if there is none.

    The generator of a `contextlib.contextmanager` does not count: it is part of the `with` statement that runs it. The
    search ends where that of the scope around began. And it ends at the capture: a generator that runs a capture cannot
    be suspended meanwhile.
    """
    frame: types.FrameType | None = sys._getframe(2)
    outer = session.scope
    frame_of_outer, generator_of_outer = (None, None) if outer is None else (outer.frame, outer.generator)
    while frame is not None and frame is not session.frame:
        if frame is frame_of_outer:
            return generator_of_outer
        if frame.f_code.co_flags & _GENERATOR:
            above = frame.f_back
            while above is not None and above.f_code.co_flags & _GENERATOR:
                above = above.f_back
            if above is None or above.f_globals.get("__name__") != "contextlib":
                return frame
            frame = above
        frame = frame.f_back
    return None


def _current_task() -> int | None:
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or asyncio._get_running_loop() is None:
        return None
    return id(asyncio.current_task())


class scope:
    """Puts the sites inside the block under a name.

    Scopes count from the capture inwards: one that was entered before the capture began is not part of the path.
    When no capture runs it costs next to nothing.

    A name that ends in `/*` names the loop inside the block, a `jax.lax.scan`, `map` or `fori_loop`: its iterations are
    then at `blocks/0/...`, `blocks/1/...` and so on, like those of a Python loop. Modules whose own path is below that
    of the scope, as the scanned `self.blocks` is below `blocks`, are at `blocks/0/...` too.

    Example:
        >>> import sonde
        >>> def f(x):
        ...     with sonde.scope("block"):
        ...         return sonde.sow(x * 2, "double")
        >>> list(sonde.capture(f)(1.0)[1])
        ['block/double']
        >>> import jax
        >>> def g(x):
        ...     with sonde.scope("blocks/*"):
        ...         return jax.lax.scan(lambda c, _: (sonde.sow(c * 2, "double"), None), x, length=3)[0]
        >>> print(sonde.capture(g)(1.0)[1]["blocks/2/double"].value)
        8.0
    """

    __slots__ = ("__weakref__", "_manager", "_name", "_opened", "_outer", "frame", "generator")

    def __init__(self, name: str) -> None:
        if not isinstance(name, ScopeName):
            is_loop = isinstance(name, str) and (name == "*" or name.endswith("/*"))
            checked_name(name[:-2] or "loop" if is_loop else name)
            name = LoopName(name) if is_loop else ScopeName(name)
        self._name = name
        self._manager = None
        self._outer: scope | None = None
        self.frame: types.FrameType | None = None  # in which it was entered
        self.generator: types.FrameType | None = None  # the frame of the generator in which it was entered

    @property
    def is_suspended(self) -> bool:
        """Whether it was entered in a generator that does not run now."""
        return self.generator is not None and self.generator.f_back is None

    def __enter__(self) -> None:
        session = SESSIONS.current()
        if session is None or capture_state() is None:
            self._manager = None
            return
        self._name.task = _current_task()
        self.generator = _generator_around(session)
        if self.generator is not None:
            self._name.entered = weakref.ref(self)
        if self.generator is not None or self._name.task is not None:
            session.has_suspendable_scopes = True
        self._outer, self.frame, session.scope = session.scope, sys._getframe(1), self
        self._manager = _jax.open_name(self._name)
        self._opened = self._manager.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        manager, self._manager, self.frame, self.generator = self._manager, None, None, None
        session = SESSIONS.current()
        if session is not None and session.scope is self:
            session.scope = self._outer
        self._outer = None
        if manager is None or capture_state() is None:
            return  # the capture in which the scope was entered has ended, and has closed it
        if _jax.is_innermost(self._opened):
            manager.__exit__(kind, error, traceback)
        elif kind is None or kind is GeneratorExit:
            raise ScopeError(
                f"scope {str(self._name)!r} is left, but {'/'.join(map(str, _jax.name_stack()))!r} is open; scopes "
                "must be left in reverse order, also across generators and asyncio tasks"
            )


def scope_of_function(name: str, depths: frozenset[int]) -> scope:
    """The scope of a function that some of the nested captures look into.

    Args:
        name: The name of the function.
        depths: Those captures, each by its depth, the outermost being 1. The others do not see the scope.
    """
    function = FunctionName(name)
    function.depths = depths
    return scope(function)
