"""Capture state of this thread: what the running captures ask for.

Whether a capture is running is kept in a JAX user context, and so is part of every jit cache key: without a capture,
`sow` adds nothing to the program; while one runs, jitted functions are traced again with their sites in. User contexts
are thread-local: a capture does not see threads that the captured function starts.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from typing import Any

import jax

from sonde import _jax
from sonde.core.asking import AskedInside


@dataclasses.dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Looking:
    """What the running captures ask for, as far as the traced program depends on it.

    JAX compares it in each lookup of a trace. To make that cheap, its hash is computed once, and `look` reuses the
    object of an equal request while that exists, so that most comparisons are by identity.

    Attributes:
        grads: Whether gradients are wanted too.
        edits: Whether values may be replaced: one that does not vary over a mapped axis may then come to do so.
        depth: How many captures, edits and so on are nested.
        modules: What each of them wants of modules (`modules.trail.Wanted`).
        inside: What their `inside=` asks for; see `core/asking.py`.
        sows: Whether any of them wants what is marked without a tag: `nnx.capture` wants what Modules mark alone.
    """

    grads: bool
    edits: bool = False
    depth: int = 1
    modules: tuple[Any, ...] = ()
    inside: AskedInside | None = None
    sows: bool = True
    _hash: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self._key))

    @property
    def _key(self) -> tuple[Any, ...]:
        return self.grads, self.edits, self.depth, self.modules, self.inside, self.sows

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Looking) and self._hash == other._hash and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def known(self) -> Looking:
        """The object that represents this; one with an `inside=` request keeps what it has found."""
        return self if self.inside is not None else _known.setdefault(self._key, self)


_known: weakref.WeakValueDictionary[tuple[Any, ...], Looking] = weakref.WeakValueDictionary()
_context = jax.make_user_context(None)


def looking() -> Looking | None:
    """What the captures of the current thread ask for, or None if none runs."""
    return _context.value


def sows_are_seen() -> bool:
    """Whether a capture wants what `sow` marks: if not, what is computed only to be marked need not be."""
    state = _context.value
    return state is not None and state.sows


class _RunningCaptures:
    """How many captures run in all threads together, to be read where asking JAX for the context costs too much."""

    __slots__ = ("_lock", "_of_thread", "count")

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._of_thread: dict[int, int] = {}

    def __reduce__(self) -> str:
        return "RUNNING_CAPTURES"  # methods of modules refer to it, and are pickled with classes of `__main__`

    def mine(self) -> int:
        """How many of them run in this thread."""
        return self._of_thread.get(threading.get_ident(), 0)

    def set(self, n: int) -> None:
        """Says how many run in this thread."""
        with self._lock:
            if n:
                self._of_thread[threading.get_ident()] = n
            else:
                self._of_thread.pop(threading.get_ident(), None)
            self.count = sum(self._of_thread.values())


RUNNING_CAPTURES = _RunningCaptures()


class unchanged_after:
    """Leaves the thread as it was before the block, however the block ends.

    An exception such as KeyboardInterrupt may be raised anywhere, also while something is entered or left. If it hits
    the very moment of restoring, that is done again.
    """

    __slots__ = ("_jax_state", "_n", "_value")

    def __enter__(self) -> None:
        self._value, self._n, self._jax_state = _context.value, RUNNING_CAPTURES.mine(), _jax.thread_state()

    def __exit__(self, *error: object) -> None:
        interrupt = None
        while True:
            try:
                if _context.value is not self._value:
                    _context(self._value).__enter__()
                RUNNING_CAPTURES.set(self._n)
                _jax.restore_thread_state(self._jax_state)
                break
            except KeyboardInterrupt as found:
                interrupt = found
        if interrupt is not None:
            raise interrupt


class look:
    """Sets what is looked for, or that nothing is, until the block ends. Scopes left open inside are closed."""

    __slots__ = ("_context", "_names", "_value")

    def __init__(self, value: Looking | None) -> None:
        self._value = value = value and value.known()
        self._context = _context(value)
        self._names = _jax.same_names_after()

    def __enter__(self) -> None:
        if self._value is not None:
            if self._value.inside is not None:
                self._value.inside.install()
            RUNNING_CAPTURES.set(RUNNING_CAPTURES.mine() + 1)
        self._context.__enter__()
        self._names.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._names.__exit__(*error)
        self._context.__exit__(*error)
        if self._value is not None:
            RUNNING_CAPTURES.set(RUNNING_CAPTURES.mine() - 1)
            if self._value.inside is not None:
                self._value.inside.remove()
