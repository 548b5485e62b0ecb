"""Calls that a capture cannot see into: functions of the host, in other threads, and those compiled ahead of time.

A site in them would be lost silently. A function that a traced program calls on the host (`jax.pure_callback` and the
like) therefore runs with the capture noted, and every site in it is an error. So does what the program runs in a thread
that it starts, or gives to a thread pool. A function that was compiled ahead of time, or exported, does not show the
sites of its source; calling it is an error.

Functions that `inside=` reaches through a package are left out in these cases.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from sonde import _jax
from sonde.core.session.session import SESSIONS, CaptureState, Session, as_started_by, capture_state, with_capture_state
from sonde.errors import CaptureError


@dataclasses.dataclass(frozen=True)
class _LookedAt:
    """A function on the host, called by a program that was traced while a capture ran."""

    function: Callable[..., Any]
    state: CaptureState

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with with_capture_state(self.state):
            return self.function(*args, **kwargs)


def _looked_at(function: Callable) -> Any:
    state = capture_state()
    return function if state is None or isinstance(function, _LookedAt) else _LookedAt(function, state)


def _refuse() -> None:
    # A function that `inside=` reaches through its package may be left out; one that it names may not.
    state = capture_state()
    if state is not None and (state.inside is None or state.inside.names_functions()):
        raise CaptureError(
            "a captured function calls a function that was compiled ahead of time or exported, whose program is fixed: "
            "sites in it would be missing from the records. Call the jitted function, or the compiled one outside the "
            "capture"
        )


@dataclasses.dataclass(frozen=True)
class _InThread:
    """A function that the program of a capture runs in another thread."""

    function: Callable[..., Any]
    state: CaptureState
    started_in: weakref.ref[Session]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        starter = self.started_in()
        if starter is None or starter.has_ended:
            return self.function(*args, **kwargs)
        del starter  # this thread may outlive the capture
        try:
            with as_started_by(self.started_in, self.state):
                return self.function(*args, **kwargs)
        except CaptureError as error:
            if (starter := self.started_in()) is not None:
                starter.lost = error  # for the thread that captures: nothing else may notice the end of this one
            raise


def _for_thread(function: Callable) -> Any:
    """A function that the program of this thread runs in another one."""
    state, session = capture_state(), SESSIONS.current()
    if state is None or session is None:
        return function
    started_in = weakref.ref(session.runs[-1]) if session.runs else session.started_in
    return function if started_in is None else _InThread(function, state, started_in)


def _starting() -> _jax.Change:
    plain = threading.Thread.start

    @functools.wraps(plain)
    def start(self: threading.Thread) -> None:
        run = _for_thread(self.run)
        if isinstance(run, _InThread):
            self.run = run
        plain(self)

    return _jax.Change(threading.Thread, "start", start)


CHANGES = (*_jax.opaque_calls(_looked_at, _refuse).changes, _starting())


def submitting(pools: Any) -> _jax.Change:
    """What is given to a thread pool, of `concurrent.futures.thread`, runs with the capture noted."""
    plain = pools.ThreadPoolExecutor.submit

    @functools.wraps(plain)
    def submit(self: Any, fn: Callable, /, *args: Any, **kwargs: Any) -> Any:
        return plain(self, _for_thread(fn), *args, **kwargs)

    return _jax.Change(pools.ThreadPoolExecutor, "submit", submit)
