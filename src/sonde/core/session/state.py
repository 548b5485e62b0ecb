"""Capture state of this thread: what the running captures want.

Whether a capture is running is kept in a JAX user context, and so is part of every jit cache key: without a capture,
`sow` adds nothing to the program; while one runs, jitted functions are traced again with their sites in. User contexts
are thread-local: a capture does not see threads that the captured function starts. A site in one of them is an error
while the capture runs (`opaque_calls.py`).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, Self

import jax

from sonde import _jax
from sonde.core.session.inside_protocol import ActiveRequests

_known: weakref.WeakValueDictionary[tuple[Any, ...], CaptureState] = weakref.WeakValueDictionary()


class CaptureState:
    """What the running captures want, as far as the traced program depends on it.

    JAX compares it in each lookup of a trace. To make that cheap it is compared by identity: an equal request gives the
    same object, while that exists.

    Args:
        grads: Whether gradients are wanted too.
        edits: Whether values may be replaced: a value that does not vary over a mapped axis may then start to.
        depth: How many captures, edits and so on are nested.
        modules: What each capture wants of modules (`modules.call_stack.Wanted`).
        inside: The requests of their `inside=`; see `core/session/inside_protocol.py`.
        sows: Whether any of them wants what is marked without a tag: `nnx.capture` wants what Modules mark alone.
        plans: The edits among them, the outermost first (`plan.RunningPlan`).
        sees_all: Whether every operation is wanted, not only sites. Calls that captures have left to JAX's fast path
            must then be made anew.
        seen_below: In the function of an edit, the depth of the edit: only the captures around it see what is marked.

    Attributes:
        methods: The methods of modules whose arguments and results any of them wants.
    """

    __slots__ = (
        "__weakref__",
        "depth",
        "edits",
        "grads",
        "inside",
        "methods",
        "modules",
        "plans",
        "seen_below",
        "sees_all",
        "sows",
    )

    def __new__(  # noqa: D102 (the class says what it takes)
        cls,
        grads: bool,
        edits: bool = False,
        depth: int = 1,
        modules: tuple[Any, ...] = (),
        inside: ActiveRequests | None = None,
        sows: bool = True,
        plans: tuple[Any, ...] = (),
        sees_all: bool = False,
        seen_below: int | None = None,
    ) -> CaptureState:
        key = grads, edits, depth, modules, inside, sows, plans, sees_all, seen_below
        found = _known.get(key)
        if found is not None:
            return found
        new = super().__new__(cls)
        new.grads, new.edits, new.depth, new.modules, new.inside, new.sows = key[:6]
        new.plans, new.sees_all, new.seen_below = key[6:]
        new.methods = frozenset[str]().union(*[wanted.methods for wanted in modules])
        return _known.setdefault(key, new)

    def below(self, depth: int) -> CaptureState:
        """The same in the function of an edit at this depth."""
        fields = self.grads, self.edits, self.depth, self.modules, self.inside, self.sows, self.plans, self.sees_all
        return CaptureState(*fields, seen_below=depth)

    @property
    def seen_by(self) -> range | None:
        """The depths of the captures that see what is marked; None: all."""
        return None if self.seen_below is None else range(1, self.seen_below)

    def may_miss(self, site: Any) -> bool:
        """Whether a site that the captures cannot see may be left out: `inside=` reached it through a package."""
        return site.depths is not None and (self.inside is None or not self.inside.must_see(site.source))


_context = jax.make_user_context(None)


def capture_state() -> CaptureState | None:
    """What the captures of the current thread want, or None if none runs."""
    return _context.value


def sows_are_seen() -> bool:
    """Whether a capture wants what `sow` marks. If not, values that are computed only to be marked are not needed."""
    state = _context.value
    return state is not None and state.sows


class _RunningCaptures:
    """Whether captures run in any thread, for code in which asking JAX for the context would cost too much.

    Attributes:
        threads: How many run in each thread; without threads in which none runs.
    """

    __slots__ = ("threads",)

    def __init__(self) -> None:
        self.threads: dict[int, int] = {}

    def __reduce__(self) -> str:
        return "RUNNING_CAPTURES"  # methods of modules refer to it, and are pickled with classes of `__main__`

    def mine(self) -> int:
        """How many of them run in this thread."""
        return self.threads.get(threading.get_ident(), 0)

    def set(self, n: int) -> None:
        """Says how many run in this thread."""
        if n:
            self.threads[threading.get_ident()] = n
        else:
            self.threads.pop(threading.get_ident(), None)


RUNNING_CAPTURES = _RunningCaptures()


class _Thread(threading.local):
    """What is known of this thread.

    Attributes:
        trails: Those of the captures that run in it (`modules/call_stack.py`), the outermost first.
        frame: That of the code that runs the innermost capture; frames above it stay where they are while it runs.
        scope: The innermost scope that is open (`scopes.py`).
        started_in: If the program of a capture in another thread started this one, or what runs in it now: a weak
            reference to the trail of that capture, which ends with it.
    """

    def __init__(self) -> None:
        self.trails: list[Any] = []
        self.frame: types.FrameType | None = None
        self.scope: Any = None
        self.started_in: weakref.ref[Any] | None = None


thread = _Thread()


def has_outlived_capture() -> bool:
    """Whether the program of a capture that has ended meanwhile started this thread."""
    return thread.started_in is not None and thread.started_in() is None


class unchanged_after:
    """Restores the state of the thread after the block, however the block ends.

    An exception such as KeyboardInterrupt may be raised anywhere, also while something is entered or left. If it hits
    during the restoring, that is done again: `end` is called before the block ends, so only two interrupts could do
    harm. Whatever is changed is therefore noted before, and every way back may be gone twice.
    """

    __slots__ = ("_frame", "_has_ended", "_jax_state", "_n", "_scope", "_trails", "_undo", "_value")

    def __enter__(self) -> Self:
        self._value, self._n, self._jax_state = _context.value, RUNNING_CAPTURES.mine(), _jax.thread_state()
        self._trails, self._frame, self._scope = thread.trails, thread.frame, thread.scope
        self._undo: list[Callable[[], None]] = []
        self._has_ended = False
        return self

    def change(self, changes: _jax.InPlace) -> None:
        """Makes changes to JAX, until the block ends."""
        self._undo.append(lambda: changes.leave(self))
        changes.enter(self)

    def begin(self, value: CaptureState, trace: Any, *trails: Any) -> None:
        """Sets what captures want, the trace that code runs under, and further trails, until the block ends."""
        if value.inside is not None:
            self._undo.append(value.inside.way_back())
            value.inside.install()
        thread.trails = [*self._trails, *trails]
        thread.frame = sys._getframe(1)
        RUNNING_CAPTURES.set(self._n + 1)
        _context(value).__enter__()
        _jax.start_trace(trace)

    def __exit__(self, *error: object) -> None:
        if not self._has_ended:
            self.end()

    def end(self) -> None:
        """Restores what was before."""
        interrupt = None
        while True:
            try:
                if _context.value is not self._value:
                    _context(self._value).__enter__()
                RUNNING_CAPTURES.set(self._n)
                _jax.restore_thread_state(self._jax_state)
                thread.trails, thread.frame, thread.scope = self._trails, self._frame, self._scope
                for undo in reversed(self._undo):
                    undo()
                break
            except KeyboardInterrupt as found:
                interrupt = found
        self._has_ended = True
        self._undo, self._frame = [], None  # they refer to this object, and to the values of the program
        if not self._trails:
            _jax.forget_arguments()
        if interrupt is not None:
            raise interrupt


def with_capture_state(value: CaptureState | None) -> contextlib.AbstractContextManager[Any]:
    """A block in which captures want something else, or nothing. Scopes left open inside are closed.

    If they want nothing, no scope is opened.
    """
    return _context(value) if value is None else _looking_for(value)


class _looking_for(unchanged_after):
    __slots__ = ("_wanted",)

    def __init__(self, wanted: CaptureState) -> None:
        self._wanted = wanted

    def __enter__(self) -> Self:
        super().__enter__()
        self.begin(self._wanted, _jax.current_trace())
        return self
