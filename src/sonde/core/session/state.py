"""Capture state of this thread: what the running captures want.

Whether a capture is running is kept in a JAX user context, and so is part of every jit cache key: without a capture,
`sow` adds nothing to the program; while one runs, jitted functions are traced again with their sites in. User contexts
are thread-local: a capture does not see threads that the captured function starts. A site in one of them is an error
while the capture runs (`opaque_calls.py`).

Everything else that exists only while a capture runs is in its `Session` (`session.py`), which sets the state.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import jax

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
        return _known.setdefault(key, state)

    def below(self, depth: int) -> CaptureState:
        """The same in the function of an edit at this depth."""
        fields = self.grads, self.edits, self.depth, self.modules, self.inside, self.sows, self.plans, self.sees_all
        return CaptureState(*fields, seen_below=depth)

    @property
    def seen_by(self) -> range | None:
        """The depths of the captures that see what is marked; None: all."""
        return None if self.seen_below is None else range(1, self.seen_below)

    def may_miss(self, site: Any) -> bool:
        """Whether to skip a site that no capture can record: it came from a package, and was not named in `inside=`."""
        return site.depths is not None and (self.inside is None or not self.inside.must_see(site.source))


_context = jax.make_user_context(None)


def capture_state() -> CaptureState | None:
    """What the captures of the current thread want, or None if none runs."""
    return _context.value


def sows_are_seen() -> bool:
    """Whether a capture wants what `sow` marks. If not, values that are computed only to be marked are not needed."""
    state = _context.value
    return state is not None and state.sows


def block_with_state(value: CaptureState | None) -> contextlib.AbstractContextManager[None]:
    """A block with another capture state, and nothing else: `session.with_capture_state` is what most callers need."""
    return _context(value)


def set_state(value: CaptureState | None) -> None:
    """Sets the capture state of the thread. The session that calls it sets back what was there before."""
    if _context.value is not value:
        _context(value).__enter__()
