"""Caches: what is kept for later calls, and for how long.

Compiled programs are large. Those that belong to a function are stored on the function, so that they are freed with it,
and only a few for each, so that a new `reduce` function in every call does not fill the memory.

What belongs to an object that cannot store it, such as a jaxpr, is in a table (`ByIdentity`), and is freed with the
object.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_MOST = 16
_NAME = "__sonde_kept__"


class Bounded(dict[Any, Any]):
    """A dict that forgets its oldest entry when it gets too large."""

    def __init__(self, most: int = _MOST) -> None:
        super().__init__()
        self.most = most

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        while len(self) > self.most:
            self.pop(next(iter(self)), None)

    def remembered(self, key: Hashable, make: Callable[[], T]) -> T:
        """The entry of a key, made if it is missing; it becomes the last to be forgotten."""
        value = self.pop(key, self)  # itself: nothing
        if value is self:
            value = make()
        self[key] = value
        return value


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


class _Kept(Bounded):
    """What is kept with a function."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.owner = weakref.ref(owner)


def kept_with(owner: Any, key: Hashable, make: Callable[[], T]) -> T:
    """Something that is made once and kept as long as `owner`, a function or a jitted function, exists.

    It is stored on the function itself: what is kept refers to the function, and in a table of ours, weak or not, that
    would keep it alive. `functools.wraps` and `jax.jit` copy the attributes of a function to another, which must not
    get what was made for the first.
    """
    kept = owner.__dict__.get(_NAME)
    if kept is None or kept.owner() is not owner:
        kept = owner.__dict__[_NAME] = _Kept(owner)
    return kept.remembered(key, make)


class ByIdentity(Generic[T]):
    """A dict from objects, by identity, to something made for them; an entry is removed with its object.

    Attributes:
        entries: By `id`, a weak reference to the object and what belongs to it.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.entries: dict[int, tuple[weakref.ref[Any], T]] = {}

    def of(self, key: Any) -> T:
        """What belongs to an object."""
        number, entries = id(key), self.entries
        entry = entries.get(number)
        if entry is None or entry[0]() is not key:
            entry = (weakref.ref(key, lambda _: entries.pop(number, None)), self._make(key))
            entries[number] = entry
        return entry[1]


class JaxprCache(ByIdentity[dict[Any, Any]]):
    """Results about jaxprs, as long as each lives; for each jaxpr, those of the last few keys."""

    def __init__(self) -> None:
        super().__init__(lambda jaxpr: Bounded(64))
