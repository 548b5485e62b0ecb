"""Whether anybody looks, and under which scope.

The answer lives in a JAX user context, so that it is part of every jit cache key: when nobody looks, `sow` adds nothing
to the program; while a capture runs, jitted functions are traced again with their sites in, once for every scope they
are called under. User contexts are thread-local: a thread that the captured function starts is not looked at.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Hashable, Iterator
from types import TracebackType

import jax

from sonde.core.path import checked_name
from sonde.errors import ScopeError


@dataclasses.dataclass(frozen=True, slots=True)
class Looking:
    """What is being looked for, as far as the traced program depends on it.

    Attributes:
        grads: Whether gradients are wanted too.
        edits: Whether values may be replaced: one that does not vary over a mapped axis may then come to do so.
        prefix: The path of the scopes entered since the capture began, with a trailing slash if not empty.
        extra: What a layer above wants jitted functions to be traced again for.
    """

    grads: bool
    edits: bool = False
    prefix: str = ""
    extra: Hashable = None


_context = jax.make_user_context(None)

# The same prefix again, as a context variable: asyncio gives each task its own copy, while the user context belongs to
# the thread. Where the two differ, tasks with open scopes have been interleaved.
_task_prefix: contextvars.ContextVar[str] = contextvars.ContextVar("sonde_scope", default="")


def looking() -> Looking | None:
    """What the current thread is looking for, or None."""
    return _context.value


@contextlib.contextmanager
def look(value: Looking | None) -> Iterator[None]:
    """Sets what is looked for, or that nothing is, until the block ends."""
    token = _task_prefix.set(value.prefix if value is not None else "")
    try:
        with _context(value):
            yield
    finally:
        _task_prefix.reset(token)


def path_of(name: str, state: Looking) -> str:
    """The path of a site called `name` under the scopes that are open now."""
    if _task_prefix.get() != state.prefix:
        raise ScopeError(
            f"site {name!r} is met under scope {state.prefix.rstrip('/')!r}, which another asyncio task entered and "
            "has not left; do not await inside `with sonde.scope(...)` while a capture runs"
        )
    return state.prefix + checked_name(name)


class scope:
    """Puts the sites met inside the block under a name.

    Scopes count from the capture inwards: one that was entered before the capture began is not part of the path.
    When nobody looks it costs next to nothing.

    Example:
        >>> import sonde
        >>> def f(x):
        ...     with sonde.scope("block"):
        ...         return sonde.sow(x * 2, "double")
        >>> list(sonde.capture(f)(1.0)[1])
        ['block/double']
    """

    __slots__ = ("_entered", "_manager", "_name", "_token")

    def __init__(self, name: str) -> None:
        self._name = checked_name(name)
        self._manager = None

    def __enter__(self) -> None:
        state = _context.value
        if state is None:
            self._manager = None
            return
        self._entered = dataclasses.replace(state, prefix=f"{state.prefix}{self._name}/")
        self._token = _task_prefix.set(self._entered.prefix)
        self._manager = _context(self._entered)
        self._manager.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        manager, self._manager = self._manager, None
        if manager is None:
            return
        state = _context.value
        if state is self._entered:
            manager.__exit__(kind, error, traceback)
            _task_prefix.reset(self._token)
        elif state is not None and kind is None:
            raise ScopeError(
                f"scope {self._name!r} is left while {state.prefix.rstrip('/')!r} is open; scopes must be left in the "
                "reverse order of entering them, also across generators and asyncio tasks"
            )
        # Otherwise the capture in which the scope was entered is over: there is nothing left to undo.
