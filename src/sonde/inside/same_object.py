"""`a is b` for programs with marks: which values are one object in the program without marks.

A value that passes through its site comes out as another object. Code that was not written for Sonde and asks `a is b`
of arrays, as `equinox.tree_at` does to find a leaf in a tree, must get the answer that it gets without marks. So what
comes out of a site counts as the same object as what went in. Not while an edit runs: the value that comes out may then
be a new one. What a library stores about an array by its identity belongs to all of these objects, also while an edit
runs: Keras stores masks in this way (`libraries/keras_masks.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sonde import _jax
from sonde.core import PASSED_SITES, capture_state

_ARRAYS = (jax.Array, np.ndarray)  # tracers among them


class _SameObjects:
    """Which arrays are one object in the program without marks. An entry is removed with its array.

    Attributes:
        keeps_alive: Whether what went into a site must live as long as what came out: a library that keeps something
            about arrays drops it with the array. Without such a library nothing is kept alive, because a tracer may
            come out as one of a trace outside.
    """

    def __init__(self) -> None:
        self.keeps_alive = False
        # For a value that went into sites or came out of them, by identity: itself, the list of those that are the
        # same, and what went in if it came out and is kept alive.
        self._entries: dict[int, tuple[weakref.ref[Any], list[weakref.ref[Any]], Any]] = {}

    def of(self, value: Any) -> list[weakref.ref[Any]] | None:
        """The objects that are the same as a value; None if only the value itself is."""
        entry = self._entries.get(id(value))
        return entry[1] if entry is not None and entry[0]() is value else None

    def add(self, value: Any, objects: list[weakref.ref[Any]], before: Any) -> None:
        """Adds a value to the objects that are the same; `before` is what went into the site that it came out of."""
        key, entries = id(value), self._entries

        def forget(gone: weakref.ref[Any]) -> None:
            if (entry := entries.get(key)) is not None and entry[0] is gone:
                del entries[key]

        ref = weakref.ref(value, forget)
        objects.append(ref)
        entries[key] = ref, objects, before if self.keeps_alive else None


_SAME = _SameObjects()


def note(before: Any, after: Any) -> None:
    """Notes what came out of a site for an array, if it is a different object."""
    if after is before or not (isinstance(before, _ARRAYS) and isinstance(after, _ARRAYS)):
        return
    objects = _SAME.of(before)
    if objects is None:
        objects = []
        _SAME.add(before, objects, None)
    _SAME.add(after, objects, before)


def is_same(a: Any, b: Any) -> bool:
    """The value of `a is b` in the program without marks."""
    if a is b:
        return True
    state = capture_state()
    if state is None or state.edits or not isinstance(a, _jax.Tracer) or not isinstance(b, _jax.Tracer):
        return False
    objects = _SAME.of(a)
    return objects is not None and objects is _SAME.of(b)


def note_all(befores: Sequence[Any], afters: Sequence[Any]) -> None:
    """Notes what came out of a site, if code that was not written for Sonde may compare it."""
    state = capture_state()
    if _SAME.keeps_alive or (state is not None and state.inside is not None):
        for before, after in zip(befores, afters):
            note(before, after)


PASSED_SITES.append(note_all)


def same_as(value: Any) -> list[Any]:
    """The objects that stand for one value of the program without marks: all that still exist."""
    objects = _SAME.of(value)
    return [value] if objects is None else [x for ref in objects if (x := ref()) is not None]


def keep_all_alive() -> None:
    """From now on, what went into a site lives as long as what came out of it."""
    _SAME.keeps_alive = True
