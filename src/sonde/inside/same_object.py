"""`a is b` for programs with marks: which values are one object in the program without marks.

A value that passes through its site comes out as another object. Code that was not written for Sonde and asks `a is b`
of arrays, as `equinox.tree_at` does to find a leaf in a tree, must get the answer that it gets without marks. So what
comes out of a site counts as the same object as what went in. Not while an edit runs: the value that comes out may then
be a new one. What a library stores about an array by its identity belongs to all of these objects, also while an edit
runs: Keras stores masks in this way (`libraries/changes.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sonde import _jax
from sonde.core import PASSED_SITES, ByIdentity, capture_state

_ARRAYS = (jax.Array, np.ndarray)  # tracers among them


class _SameObjects(ByIdentity[tuple[list[weakref.ref[Any]], Any]]):
    """Which arrays are one object in the program without marks: for each of them a list of all, shared by all.

    Attributes:
        keeps_alive: Whether what went into a site must live as long as what came out: a library that keeps something
            about arrays drops it with the array. Without such a library nothing is kept alive, because a tracer may
            come out as one of a trace outside.
    """

    keeps_alive = False

    def objects(self, value: Any) -> list[weakref.ref[Any]] | None:
        """The objects that are the same as a value; None if only the value itself is."""
        entry = self.get(value)
        return None if entry is None else entry[0]

    def add(self, value: Any, objects: list[weakref.ref[Any]], before: Any) -> None:
        """Adds a value to the objects that are the same; `before` is what went into the site that it came out of."""
        objects.append(weakref.ref(value))
        self.set(value, (objects, before if self.keeps_alive else None))


_SAME = _SameObjects()


def note(before: Any, after: Any) -> None:
    """Notes what came out of a site for an array, if it is a different object."""
    if after is before or not (isinstance(before, _ARRAYS) and isinstance(after, _ARRAYS)):
        return
    objects = _SAME.objects(before)
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
    objects = _SAME.objects(a)
    return objects is not None and objects is _SAME.objects(b)


def note_all(befores: Sequence[Any], afters: Sequence[Any]) -> None:
    """Notes what came out of a site, if code that was not written for Sonde may compare it."""
    state = capture_state()
    if _SAME.keeps_alive or (state is not None and state.inside is not None):
        for before, after in zip(befores, afters):
            note(before, after)


PASSED_SITES.append(note_all)


def same_as(value: Any) -> list[Any]:
    """The objects that stand for one value of the program without marks: all that still exist."""
    objects = _SAME.objects(value)
    return [value] if objects is None else [x for ref in objects if (x := ref()) is not None]


def keep_all_alive() -> None:
    """From now on, what went into a site lives as long as what came out of it."""
    _SAME.keeps_alive = True
