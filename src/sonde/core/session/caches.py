"""Caches: what is kept for later calls, and for how long.

Compiled programs are large. Those that belong to a function are stored on the function, so that they are freed with it.
Those that belong to an object that cannot store them, such as a jaxpr, are in a table (`ByIdentity`), and are freed
with the object. Beyond that the memory that all of them take is bounded (`set_cache_bound`): those that were used least
recently are dropped.

A verb that compiles programs for a function keeps them like this:

    program = kept_with(f, key, lambda meter: meter.jit(run, static_argnums=0))

`key` is everything but the arguments that `run` depends on: options, patterns, `closures.state_of` the user's
functions. `meter.jit` is `jax.jit`, and estimates what each trace takes. What `make` returns may be anything that holds
such jitted functions, or none.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import jax

from sonde import _jax

T = TypeVar("T")
_NAME = "__sonde_kept__"


class Meter:
    """Estimates what something that is kept takes: XLA does not say how large a program for the CPU is.

    Attributes:
        bytes: The estimate.
        programs: How many programs were traced, each to be compiled.
        used: When it was last used, as a number that grows.
    """

    __slots__ = ("bytes", "programs", "used")

    # What the process grew by with compiled programs of 2 and of 300 equations; and what a traced equation takes.
    PROGRAM, EQUATION, TRACED = 2**20, 2**14, 2**11

    def __init__(self) -> None:
        self.bytes = self.programs = 0
        self.used = _KEPT.now()

    def jit(self, fn: Callable[..., Any], **options: Any) -> Any:
        """`jax.jit`, whose programs count."""

        @functools.wraps(fn)
        def traced(*args: Any, **kwargs: Any) -> Any:
            out = fn(*args, **kwargs)
            self.programs += 1
            self.add(self.PROGRAM + self.EQUATION * _jax.count_traced_equations())
            return out

        if isinstance(fn, functools.partial):  # which has no name
            traced.__name__ = getattr(fn.func, "__name__", type(fn.func).__name__)
        return jax.jit(traced, **options)

    def add(self, more: int) -> None:
        """Notes that more bytes are taken."""
        self.bytes += more
        self.used = _KEPT.now()
        _KEPT.shrink(spared=self)


class Programs(dict[Hashable, Any]):
    """What is kept with one object, by key. Using an entry makes it the last to be dropped.

    Args:
        owner: The object. It is not kept alive, unless it cannot be referred to weakly.
    """

    def __init__(self, owner: Any = None) -> None:
        super().__init__()
        self.owner: Callable[[], Any] = lambda: None
        if owner is not None:
            self.owner = weakref.ref(owner)
        self.meters: dict[Hashable, Meter] = {}
        _KEPT.add(self)

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __reduce__(self) -> Any:
        return type(None), ()  # a function that is pickled leaves its programs behind

    def get(self, key: Hashable, default: Any = None) -> Any:
        """The entry of a key."""
        meter = self.meters.get(key)
        if meter is not None:
            meter.used = _KEPT.now()
        return super().get(key, default)

    def keep(self, key: Hashable, value: Any, meter: Meter) -> None:
        """Adds an entry; what it takes is measured by a meter."""
        self.meters[key] = meter
        super().__setitem__(key, value)
        _KEPT.added()

    def __setitem__(self, key: Hashable, value: Any) -> None:
        self.keep(key, value, Meter())

    def forget(self, key: Hashable) -> None:
        """Drops an entry."""
        self.pop(key, None)
        self.meters.pop(key, None)

    def remembered(self, key: Hashable, make: Callable[[Meter], T]) -> T:
        """The entry of a key, made if it is missing."""
        value = self.get(key, self)  # itself: nothing
        _KEPT.count(hit=value is not self)
        if value is self:
            meter = Meter()
            value = make(meter)
            self.keep(key, value, meter)
        return value


def _default_bound() -> int:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not on this system
        memory = 2**33
    return min(memory // 4, 2**32)


class _AllKept:
    """All tables of programs in the process, and the bound on what they take.

    Attributes:
        bound: In bytes.
        hits: How often something that was kept was used again.
        misses: How often it had to be made.
    """

    def __init__(self) -> None:
        self.bound = _default_bound()
        self.hits = self.misses = 0
        # By `id`. Without a lock, which an interrupt could leave locked: every change is one operation of a dict.
        self._tables: dict[int, weakref.ref[Programs]] = {}
        self._n_new = 0
        self._clock = itertools.count(1)

    def now(self) -> int:
        """A number that grows with every use."""
        return next(self._clock)

    def add(self, table: Programs) -> None:
        tables, number = self._tables, id(table)
        tables[number] = weakref.ref(table, lambda _: tables.pop(number, None))

    def count(self, *, hit: bool) -> None:
        self.hits += hit
        self.misses += not hit

    def added(self) -> None:
        """Notes a new entry. Summing up takes time: what is not compiled is small, and is looked at now and then."""
        self._n_new += 1
        if self._n_new >= _OFTEN:
            self.shrink()

    def tables(self) -> list[Programs]:
        return [table for ref in list(self._tables.values()) if (table := ref()) is not None]

    def entries(self) -> list[tuple[Meter, Programs, Hashable]]:
        return [(meter, table, key) for table in self.tables() for key, meter in list(table.meters.items())]

    def shrink(self, spared: Meter | None = None) -> None:
        """Drops what was used least recently, until what is left takes less than the bound."""
        self._n_new = 0
        entries = self.entries()
        total = sum(meter.bytes + _ENTRY for meter, _, _ in entries)
        if total <= self.bound:
            return
        entries.sort(key=lambda entry: entry[0].used)
        for meter, table, key in entries:
            if total <= self.bound:
                break
            if meter is not spared:
                table.forget(key)
                total -= meter.bytes + _ENTRY

    def clear(self) -> None:
        for _, table, key in self.entries():
            table.forget(key)
        self.hits = self.misses = 0


_ENTRY = 2**12  # what an entry takes that is not compiled
_OFTEN = 256
_KEPT = _AllKept()


# ---------------------------------------------------------------------------------------------------------------------
# For users
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class KeptPrograms:
    """What is kept for one function.

    Attributes:
        function: Its name.
        kept: In how many ways it is kept: one for each set of options of a capture, an edit or a tool.
        programs: How many programs were traced and compiled for these: one for each set of types of the arguments.
        bytes: An estimate of what they take.
    """

    function: str
    kept: int
    programs: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    """What Sonde keeps of programs that it has compiled; see `cache_info`.

    Attributes:
        hits: How often a capture, an edit or a tool found its program.
        misses: How often it had to make one.
        programs: How many are kept.
        bytes: An estimate of what they take.
        bound: What they may take.
        functions: The functions that they are kept for; those that take most come first.
    """

    hits: int
    misses: int
    programs: int
    bytes: int
    bound: int
    functions: tuple[KeptPrograms, ...]

    def __repr__(self) -> str:
        head = (
            f"{self.programs} programs, about {_megabytes(self.bytes)} of {_megabytes(self.bound)}; "
            f"{self.hits} hits, {self.misses} misses"
        )
        lines = [f"  {f.function}: {f.programs} programs, {_megabytes(f.bytes)}" for f in self.functions]
        return "\n".join([head, *lines])


def _megabytes(n: int) -> str:
    return f"{n / 2**20:.0f} MiB"


def cache_info() -> CacheInfo:
    """The compiled programs that Sonde keeps for later calls, and the functions that they belong to.

    Example:
        >>> import jax, sonde
        >>> f = jax.jit(lambda x: sonde.sow(x * 2, "h"))
        >>> sonde.cache_clear()
        >>> _ = sonde.capture(f)(1.0), sonde.capture(f)(2.0)
        >>> info = sonde.cache_info()
        >>> info.programs, info.hits, info.misses
        (1, 1, 1)
    """
    functions: dict[str, list[Meter]] = {}
    for table in _KEPT.tables():
        meters = [meter for meter in list(table.meters.values()) if meter.programs]
        if meters:
            functions.setdefault(_name(table.owner()), []).extend(meters)
    of_each = [
        KeptPrograms(name, len(meters), sum(m.programs for m in meters), sum(m.bytes for m in meters))
        for name, meters in functions.items()
    ]
    of_each.sort(key=lambda entry: -entry.bytes)
    programs, taken = sum(entry.programs for entry in of_each), sum(entry.bytes for entry in of_each)
    return CacheInfo(_KEPT.hits, _KEPT.misses, programs, taken, _KEPT.bound, tuple(of_each))


def _name(owner: Any) -> str:
    name = getattr(owner, "__qualname__", None) or _jax.name_of_program(owner)
    module = getattr(owner, "__module__", None)
    return f"{module}.{name}" if isinstance(module, str) and hasattr(owner, "__qualname__") else name


def cache_clear() -> None:
    """Drops all programs that Sonde keeps: the next calls compile theirs again."""
    _KEPT.clear()


def set_cache_bound(bytes: int) -> int:
    """Bounds what kept programs may take, by Sonde's estimate; returns the bound that was there before.

    Beyond it, those that were used least recently are dropped. At first it is a quarter of the machine's memory, and
    not more than 4 GiB.

    Raises:
        ValueError: The bound is negative.
    """
    if bytes < 0:
        raise ValueError(f"set_cache_bound takes a number of bytes, got {bytes}")
    before, _KEPT.bound = _KEPT.bound, int(bytes)
    _KEPT.shrink()
    return before


# ---------------------------------------------------------------------------------------------------------------------
# Where programs are kept
# ---------------------------------------------------------------------------------------------------------------------


class _Identity:
    """Represents an object in a key: equal only to itself. Functions need not be hashable."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __call__(self, *args: Any) -> Any:
        return self.value(*args)

    def __repr__(self) -> str:
        return repr(self.value)


def by_identity(value: Any) -> Hashable:
    """A part of a key for a value, compared by equality if it is hashable, otherwise by identity."""
    try:
        hash(value)
    except TypeError:
        return _Identity(value)
    return value


def given_as(part: Any) -> Any:
    """The value that `by_identity` made a part of a key of."""
    return part.value if isinstance(part, _Identity) else part


def kept_with(owner: Any, key: Hashable, make: Callable[[Meter], T]) -> T:
    """Something that is made once and kept as long as `owner`, a function or a jitted function, exists.

    It is stored on the function itself: what is kept refers to the function, and in a table of ours, weak or not, that
    would keep it alive. `functools.wraps` and `jax.jit` copy the attributes of a function to another, which must not
    get what was made for the first.

    Args:
        owner: The function, or another object with attributes.
        key: What it depends on besides the function.
        make: Makes it, given a meter with which to jit.
    """
    programs = owner.__dict__.get(_NAME)
    if programs is None or programs.owner() is not owner:
        programs = owner.__dict__[_NAME] = Programs(owner)
    return programs.remembered(key, make)


class ByIdentity(Generic[T]):
    """A dict from objects, by identity, to what is known of them; an entry is removed with its object.

    Args:
        make: Makes an entry for an object that has none, if entries are made when they are asked for.

    Attributes:
        entries: By `id`, a weak reference to the object and what belongs to it.
    """

    def __init__(self, make: Callable[[Any], T] | None = None) -> None:
        self._make = make
        self.entries: dict[int, tuple[weakref.ref[Any], T]] = {}

    def get(self, key: object) -> T | None:
        """What belongs to an object; None if nothing does."""
        entry = self.entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def set(self, key: object, value: T) -> None:
        """Makes something belong to an object."""
        number, entries = id(key), self.entries

        def forget(gone: weakref.ref[Any]) -> None:
            # Another object may have the number by now.
            if (entry := entries.get(number)) is not None and entry[0] is gone:
                del entries[number]

        entries[number] = weakref.ref(key, forget), value

    def of(self, key: object) -> T:
        """What belongs to an object, made if nothing does."""
        entry = self.entries.get(id(key))
        if entry is not None and entry[0]() is key:
            return entry[1]
        assert self._make is not None
        value = self._make(key)
        self.set(key, value)
        return value
