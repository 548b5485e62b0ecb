"""One run: everything that exists only while a capture, an edit or a search runs, and what is restored when it ends.

Each thread has one stack of sessions, of which `SESSIONS` has the innermost; a session knows the one around it.

What compiled programs depend on is the `CaptureState` of the session. It is kept in a JAX user context, and so is part
of every jit cache key: without a capture, `sow` adds nothing to the program; while one runs, jitted functions are
traced again with their sites in. User contexts are thread-local: a capture does not see threads that the captured
function starts. A site in one of them is an error while the capture runs (`opaque_calls.py`).

All else is looked up in the session: the handler, the open scopes, the calls of modules
(`core/modules/call_stack.py`), and what `sonde.inside` has replaced in the program's functions. When a session ends,
nothing of it is left.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax

from sonde import _jax
from sonde.core.session.inside_protocol import ActiveRequests, InsideRun

if TYPE_CHECKING:
    from sonde.core.interpret.handler import Handler
    from sonde.core.marks.scopes import scope
    from sonde.core.modules.call_stack import CallStack


# ---------------------------------------------------------------------------------------------------------------------
# What captures want: the part of a session that JAX keeps in its cache keys
# ---------------------------------------------------------------------------------------------------------------------

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
        inside: The requests of their `inside=`; see `inside_protocol.py`.
        sows: Whether any of them wants what is marked without a tag: `nnx.capture` wants what Modules mark alone.
        plans: The edits among them, the outermost first (`plan.RunningPlan`).
        sees_all: Whether every operation is wanted, not only sites. Calls that captures have left to JAX's fast path
            must then be made anew.
        seen_below: In the function of an edit, the depth of the edit: only the captures around it see what is marked.

    Attributes:
        methods: The methods of modules whose arguments and results any of them wants.
    """

    grads: bool
    edits: bool
    depth: int
    modules: tuple[Any, ...]
    inside: ActiveRequests | None
    sows: bool
    plans: tuple[Any, ...]
    sees_all: bool
    seen_below: int | None
    methods: frozenset[str]
    _key: tuple[Any, ...]

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
        existing = _known.get(key)
        if existing is not None:
            return existing
        state = super().__new__(cls)
        state.grads, state.edits, state.depth, state.modules, state.inside, state.sows = key[:6]
        state.plans, state.sees_all, state.seen_below = key[6:]
        state.methods = frozenset[str]().union(*[request.methods for request in modules])
        state._key = key
        return _known.setdefault(key, state)

    def below(self, depth: int) -> CaptureState:
        """The state in the function of an edit at this depth: captures inside the edit do not see what it marks."""
        return CaptureState(*self._key[:-1], seen_below=depth)

    @property
    def seen_by(self) -> range | None:
        """The depths of the captures that see what is marked; None: all."""
        return None if self.seen_below is None else range(1, self.seen_below)

    def may_miss(self, site: Any) -> bool:
        """Whether to skip a site that no capture can record: it came from a package, and was not named in `inside=`."""
        return site.depths is not None and (self.inside is None or not self.inside.must_see(site.source))


_context = jax.make_user_context(None)


# Where nothing is captured, but every operation must be seen: what was compiled for no capture must not run there.
_ALL_IS_SEEN = CaptureState(grads=False, depth=0, sows=False, sees_all=True)


def capture_state() -> CaptureState | None:
    """What the captures of the current thread want, or None if none runs."""
    state = _context.value
    return None if state is _ALL_IS_SEEN else state


def operations_are_seen() -> bool:
    """Whether every operation is wanted, not only sites."""
    state = _context.value
    return state is not None and state.sees_all


def sows_are_seen() -> bool:
    """Whether a capture wants what `sow` marks. If not, values that are computed only to be marked are not needed."""
    state = _context.value
    return state is not None and state.sows


def _set_state(value: CaptureState | None) -> None:
    if _context.value is not value:
        _context(value).__enter__()  # the session that calls this sets back what was there before


# ---------------------------------------------------------------------------------------------------------------------
# Sessions
# ---------------------------------------------------------------------------------------------------------------------


class _Sessions:
    """The innermost session of every thread in which a capture runs.

    Attributes:
        threads: By the number of the thread. It is empty if no capture runs in any thread, which code that is called
            very often tests first.
        look_for_modules: Whether a library of modules was loaded: only then may a call be about a module.
    """

    __slots__ = ("look_for_modules", "threads")

    def __init__(self) -> None:
        self.look_for_modules = False
        self.threads: dict[int, Session] = {}

    def __reduce__(self) -> str:
        return "SESSIONS"  # methods of modules refer to it, and are pickled with classes of `__main__`

    def current(self) -> Session | None:
        """The innermost session of this thread; None if no capture runs in it."""
        return self.threads.get(threading.get_ident())

    def set(self, session: Session | None) -> None:
        """Sets the innermost session of this thread."""
        if session is None:
            self.threads.pop(threading.get_ident(), None)
        else:
            self.threads[threading.get_ident()] = session


SESSIONS = _Sessions()


class Session:
    """A run of a program under a handler; or a block inside one, in which captures want something else.

    A session restores the state of the thread when it ends, however that comes about. An exception such as
    KeyboardInterrupt may be raised anywhere, even while a session begins or ends. If one arrives during the cleanup,
    the cleanup is run again. So every change is noted before it is made, and undoing a change twice does no harm.

    Args:
        handler: What is done at sites; None for a block.
        started_in: If the program of a capture in another thread started what runs here: a weak reference to the
            session of that capture.

    Attributes:
        outer: The session around it in the thread.
        runs: The sessions of the thread that run a handler, the outermost first, this one included.
        call_stack: The open calls of modules, once a library with modules is there (`core/modules/call_stack.py`).
        inside: What `sonde.inside` has changed for the captures that run.
        frame: That of the code that runs the session; frames above it stay where they are while it runs.
        scope: The innermost scope that was opened in it (`core/marks/scopes.py`).
        has_suspendable_scopes: Whether a task or a generator has entered a scope in it.
        boundary: The function whose tracing began last (`core/modules/trace_variants.py`).
        converted_modules: Modules that the next function to be traced gets in another form.
        lost: The error of a site in a thread that the program started, where the capture does not see it.
        has_ended: Whether it has ended.
    """

    outer: Session | None = None
    runs: tuple[Session, ...] = ()
    call_stack: CallStack | None = None
    inside: InsideRun | None = None
    frame: types.FrameType | None = None
    scope: scope | None = None
    has_suspendable_scopes = False
    boundary: Callable[..., Any] | None = None
    converted_modules: tuple[Any, ...] = ()
    lost: Exception | None = None
    has_ended = False

    def __init__(self, handler: Handler | None = None, *, started_in: weakref.ref[Session] | None = None) -> None:
        self.handler = handler
        self.started_in = started_in
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Self:
        self.outer = outer = SESSIONS.current()
        self._state_before, self._jax_state = _context.value, _jax.thread_state()
        if outer is not None:
            self.runs, self.inside = outer.runs, outer.inside
            self.started_in = self.started_in or outer.started_in
            self.has_suspendable_scopes = outer.has_suspendable_scopes
        if self.handler is not None:  # a block has none: it belongs to the runs around it
            self.runs = (*self.runs, self)
        return self

    @property
    def depth(self) -> int:
        """How many sessions of the thread run a handler, this one included."""
        return len(self.runs)

    @property
    def open_names(self) -> Any:
        """The names that were open when it began."""
        return _jax.names_of_state(self._jax_state)

    @property
    def trace_around(self) -> _jax.Trace:
        """The trace that was active when it began."""
        return self._jax_state[0]

    def change(self, changes: _jax.InPlace) -> None:
        """Makes changes to JAX or other libraries, until the session ends."""
        self._undo.append(lambda: changes.leave(self))
        changes.enter(self)

    def begin(self, state: CaptureState, trace: _jax.Trace, frame: types.FrameType | None = None) -> None:
        """Sets what captures want, and the trace that code runs under, until the session ends."""
        if state.inside is not None:
            # The way back first: an interrupt may cut `begin` short.
            self.inside = state.inside.run(self.inside)
            self._undo.append(self.inside.end)
            self.inside.begin()
        self.frame = sys._getframe(1) if frame is None else frame
        SESSIONS.set(self)
        _set_state(state)
        _jax.start_trace(trace)

    def __exit__(self, *error: object) -> None:
        if not self.has_ended:
            self.end()

    def end(self) -> None:
        """Restores what was before."""
        interrupt = None
        while True:
            try:
                self._restore()
                break
            except KeyboardInterrupt as error:
                interrupt = error
        self.has_ended = True
        # These refer to this object, and to the values of the program: it must not wait for the garbage collector.
        self._undo, self.frame, self.call_stack, self.inside, self.scope, self.runs = [], None, None, None, None, ()
        if self.outer is None or not self.outer.runs:  # no capture is left in the thread that could ask for them
            _jax.forget_arguments()
        if interrupt is not None:
            raise interrupt

    def _restore(self) -> None:
        _set_state(self._state_before)
        inner = SESSIONS.current()
        while inner is not None and inner is not self and inner is not self.outer:  # an interrupt has left it open
            inner._undo_changes()
            inner = inner.outer
        SESSIONS.set(self.outer)
        _jax.restore_thread_state(self._jax_state)
        self._undo_changes()

    def _undo_changes(self) -> None:
        for undo in reversed(self._undo):
            undo()


def captures_run() -> bool:
    """Whether a capture, an edit or a search runs in this thread."""
    session = SESSIONS.current()
    return session is not None and bool(session.runs)


def has_outlived_capture() -> bool:
    """Whether the program of a capture that has ended meanwhile started this thread."""
    session = SESSIONS.current()
    if session is None or session.started_in is None:
        return False
    starter = session.started_in()
    return starter is None or starter.has_ended


def with_capture_state(
    value: CaptureState | None, stacks: Sequence[CallStack] = ()
) -> contextlib.AbstractContextManager[Any]:
    """A block in which captures want something else, or nothing. Scopes left open inside are closed.

    If they want nothing, no scope is opened, and no session. If captures that have ended want it, `stacks` are the
    calls of modules that were open for each.
    """
    if value is None:
        return _context(_ALL_IS_SEEN if _jax.all_is_seen() else None)
    return _SessionWith(value, stacks=stacks)


class _SessionWith(Session):
    """A block in which captures want something else; code that it calls runs under the same trace."""

    def __init__(
        self,
        wanted: CaptureState,
        started_in: weakref.ref[Session] | None = None,
        stacks: Sequence[CallStack] = (),
    ) -> None:
        super().__init__(started_in=started_in)
        self._wanted, self._stacks = wanted, stacks

    def __enter__(self) -> Self:
        super().__enter__()
        if self._stacks:
            self.runs = tuple(Session(stack.handler) for stack in self._stacks)
            for run, stack in zip(self.runs, self._stacks):
                run.call_stack = stack
        self.begin(self._wanted, _jax.current_trace(), sys._getframe(1))
        return self


def as_started_by(starter: weakref.ref[Session], state: CaptureState) -> contextlib.AbstractContextManager[Any]:
    """A block that belongs to the program of a capture in another thread: sites in it are seen by no capture."""
    return _SessionWith(state, starter)
