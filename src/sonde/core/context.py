"""Capture state and open scopes of this thread.

Whether a capture is running is kept in a JAX user context, and so is part of every jit cache key: without a capture,
`sow` adds nothing to the program; while one runs, jitted functions are traced again with their sites in. User contexts
are thread-local: a capture does not see threads that the captured function starts.

Scopes live in JAX's name stack, which every equation remembers, counted from its own jaxpr. A function that is jitted
once and called under two scopes is therefore traced once, and its sites are found under the scope of each call; and
functions without sites, such as those of `jax.numpy`, know nothing of scopes at all.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import threading
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import jax

from sonde import _jax
from sonde.core.asking import AskedInside
from sonde.core.path import checked_name
from sonde.errors import ScopeError


@dataclasses.dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Looking:
    """What is being looked for, as far as the traced program depends on it.

    JAX compares it whenever it looks for a trace. To make that cheap, its hash is computed once, and `look` takes the
    object that was used before for the same, as long as there is one: then the two are one.

    Attributes:
        grads: Whether gradients are wanted too.
        edits: Whether values may be replaced: one that does not vary over a mapped axis may then come to do so.
        depth: How many captures, edits and so on are nested around.
        modules: What each of them wants of modules (`module_paths.Wanted`).
        inside: What is to be seen of code without sites; see `core/asking.py`.
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
    """What the current thread is looking for, or None."""
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


# ---------------------------------------------------------------------------------------------------------------------
# Scopes
# ---------------------------------------------------------------------------------------------------------------------


class ScopeName(str):
    """A name in JAX's name stack that is part of paths, as those of `jax.named_scope` are not."""

    task: int | None = None  # the asyncio task that entered it, by identity
    entered: weakref.ref[scope] | None = None  # what entered it, if in a generator

    def path(self, before: str, depth: int) -> str:
        """The path, with a trailing slash, of what is inside this scope when the scope itself is at `before`."""
        del depth
        return f"{before}{self}/"


class LoopName(ScopeName):
    """A scope that names the loop inside it: `blocks/*`. The number of an iteration is put in by `core/rows.py`."""

    def path(self, before: str, depth: int) -> str:
        """The path of what is inside this scope, without the `*`."""
        del depth
        return before + self.removesuffix("*")


class SeenName(ScopeName):
    """A scope of a function that some of the nested captures look into; it is no part of the paths of the others."""

    depths: frozenset[int] = frozenset()

    def path(self, before: str, depth: int) -> str:
        """The path of what is inside this scope."""
        return f"{before}{self}/" if depth in self.depths else before


class RowsName(ScopeName):
    """The scope of what an edit of some rows of named loops computes: other rows have none of it."""

    rows: frozenset[tuple[int, ...]] = frozenset()


def path_under(names: tuple[Any, ...], before: str, depth: int) -> str:
    """The path, with a trailing slash if not empty, of what is inside scopes that were opened at `before`.

    Args:
        names: The names of the scopes, outermost first, as JAX remembers them.
        before: The path of the outermost.
        depth: Which of the nested captures asks; scopes of modules have another path for each.
    """
    for name in names:
        if isinstance(name, ScopeName):
            before = name.path(before, depth)
    return before


def check_scopes(name: object) -> None:
    """Raises ScopeError if a scope is open that is none of the scopes of the code that runs; see `strange_scope`."""
    if (why := strange_scope()) is not None:
        raise ScopeError(f"site {name!r} runs under {why}")


class _Suspendable:
    """Whether a task or a generator has ever entered a scope: if none has, open scopes need not be looked at."""

    __slots__ = ("any",)

    def __init__(self) -> None:
        self.any = False


_SUSPENDABLE = _Suspendable()


def strange_scope() -> str | None:
    """Which open scope, if any, was entered by what does not run now, and what to do about it.

    The name stack belongs to the thread. An asyncio task that waits, and a generator that has yielded, leave their
    scopes open there for whatever runs meanwhile.
    """
    if not _SUSPENDABLE.any:
        return None
    for opened in _jax.name_stack():
        if not isinstance(opened, ScopeName):
            continue
        if opened.task is not None and opened.task != _current_task():
            return (
                f"scope {str(opened)!r}, which another asyncio task entered and has not left: do not await inside "
                "`with sonde.scope(...)` while a capture runs"
            )
        entered = opened.entered and opened.entered()
        if entered is not None and entered.is_suspended:
            return (
                f"scope {str(opened)!r}, which a generator entered and has not left, and the generator does not run "
                "now: do not yield inside `with sonde.scope(...)` while a capture runs; open the scope around each step"
            )
    return None


_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def _generator_around() -> Any:
    """The frame of the generator from which a scope is entered; None if there is none.

    That of `contextlib.contextmanager` is part of the `with` statement that runs it.
    """
    frame: Any = sys._getframe(2)
    while frame is not None:
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
    """Puts the sites met inside the block under a name.

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

    __slots__ = ("__weakref__", "_generator", "_manager", "_name", "_opened")

    def __init__(self, name: str) -> None:
        checked = checked_name(name)
        self._name = LoopName(checked) if checked == "*" or checked.endswith("/*") else ScopeName(checked)
        self._manager = None
        self._generator: Any = None

    @property
    def is_suspended(self) -> bool:
        """Whether it was entered in a generator that does not run now."""
        return self._generator is not None and self._generator.f_back is None

    def __enter__(self) -> None:
        if _context.value is None:
            self._manager = None
            return
        self._name.task = _current_task()
        self._generator = _generator_around()
        if self._generator is not None:
            self._name.entered = weakref.ref(self)
        if self._generator is not None or self._name.task is not None:
            _SUSPENDABLE.any = True
        self._manager = _jax.open_name(self._name)
        self._opened = self._manager.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        manager, self._manager, self._generator = self._manager, None, None
        if manager is None or _context.value is None:
            return  # the capture in which the scope was entered is over, and has closed it
        if _jax.is_innermost(self._opened):
            manager.__exit__(kind, error, traceback)
        elif kind is None or kind is GeneratorExit:
            raise ScopeError(
                f"scope {str(self._name)!r} is left, but {'/'.join(map(str, _jax.name_stack()))!r} is open; scopes "
                "must be left in the reverse order of entering them, also across generators and asyncio tasks"
            )


class scope_seen_by(scope):
    """A scope that only some of the nested captures know.

    Args:
        name: The name.
        depths: Which captures, by how many are nested around each, itself included.
    """

    __slots__ = ()

    def __init__(self, name: str, depths: frozenset[int]) -> None:
        super().__init__(name)
        self._name = SeenName(self._name)
        self._name.depths = depths


class scope_of_rows(scope):
    """A scope in which sites are part of the program in some rows of the named loops around only.

    Args:
        name: The name.
        rows: The rows: a number for each of the innermost named loops around.
    """

    __slots__ = ()

    def __init__(self, name: str, rows: Iterable[tuple[int, ...]]) -> None:
        super().__init__(name)
        self._name = RowsName(self._name)
        self._name.rows = frozenset(rows)
