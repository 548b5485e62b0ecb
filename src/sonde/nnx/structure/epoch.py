"""The structure epoch: a number that changes whenever the structure of any object, or metadata of a Variable, changes.

A transform that walked its arguments once may keep what it found while the number is the same. What counts as a
change: an attribute set or deleted, an item of a List, Dict or State set or removed, metadata of a Variable edited, an
object made. A Variable's *value* may change freely.

Every changed object also keeps the number of its own last change, its stamp. After a change elsewhere, a plan need not
walk again: it still holds if none of its objects has a stamp greater than the plan's epoch.

Threads: numbers come from `itertools.count`, are never used twice, and are taken *after* the change is made; a reader
takes the epoch *before* it walks. A change that the walk missed therefore has a greater number than the walk's.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any


class Epoch:
    """The current number. Read `EPOCH.value`; only objects of this package change it."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


EPOCH = Epoch()
next_number = itertools.count(1).__next__


def bump() -> int:
    """Announces a change of structure; returns the new number, which the changed object keeps as its stamp."""
    EPOCH.value = number = next_number()
    return number


#: Objects whose attributes were handed out as a dict (`vars(obj)`), by identity. They can change without a new number.
EXPOSED: dict[int, weakref.ref[Any]] = {}


def expose(obj: object) -> None:
    """Marks an object that may from now on change without a new number."""
    key = id(obj)
    if key not in EXPOSED:
        forget = EXPOSED.pop  # bound now: at the interpreter's exit the global may be gone
        EXPOSED[key] = weakref.ref(obj, lambda _: forget(key, None))
    bump()
