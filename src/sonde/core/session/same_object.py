"""`a is b` for programs with marks: which values are one object in the program without marks.

A value that passes through its site comes out as another object. Code that was not written for Sonde and asks `a is b`
of arrays, as `equinox.tree_at` does to find a leaf in a tree, must get the answer that it gets without marks. So what
comes out of a site counts as the same object as what went in. Not while an edit runs: the value that comes out may then
be a new one. What a library stores about an array by its identity belongs to all of these objects, also while an edit
runs: Keras stores masks in this way.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sonde import _jax
from sonde.core.session.session import with_capture_state
from sonde.core.session.state import capture_state

_ARRAYS = (jax.Array, np.ndarray)  # tracers among them
# For a value that went into sites or came out of them, by identity: itself, the list of those that are the same, and
# what went in if it came out. With a library that keeps something about arrays, that must live as long, because the
# library drops what it keeps with the array. Without one it is None: a tracer may come out as one of a trace outside.
_likes: dict[int, tuple[weakref.ref[Any], list[weakref.ref[Any]], Any]] = {}


def note(before: Any, after: Any) -> None:
    """Notes what came out of a site for an array, if it is a different object."""
    if after is before or not (isinstance(before, _ARRAYS) and isinstance(after, _ARRAYS)):
        return
    likes = _likes_of(before)
    if likes is None:
        likes = []
        _keep(before, likes, None)
    _keep(after, likes, before)


def is_same(a: Any, b: Any) -> bool:
    """The value of `a is b` in the program without marks."""
    if a is b:
        return True
    state = capture_state()
    if state is None or state.edits or not isinstance(a, _jax.Tracer) or not isinstance(b, _jax.Tracer):
        return False
    likes = _likes_of(a)
    return likes is not None and likes is _likes_of(b)


def note_all(befores: Sequence[Any], afters: Sequence[Any]) -> None:
    """Notes what came out of a site, if code that was not written for Sonde may compare it."""
    state = capture_state()
    if _keepers or (state is not None and state.inside is not None):
        for before, after in zip(befores, afters):
            note(before, after)


def same_as(value: Any) -> list[Any]:
    """The objects that stand for one value of the program without marks: all that still exist."""
    likes = _likes_of(value)
    return [value] if likes is None else [x for ref in likes if (x := ref()) is not None]


_keepers: set[str] = set()  # modules that keep something about arrays by identity


def shared_masks(masking: Any) -> tuple[_jax.Change, ...]:
    """In this module of Keras, all objects that stand for one array share its mask."""
    get, give = masking.get_tensor_attr, masking.set_tensor_attr
    _keepers.add(masking.__name__)

    def mask_of(array: Any, name: str) -> Any:
        with with_capture_state(None):
            return next((mask for x in same_as(array) if (mask := get(x, name)) is not None), None)

    def give_mask(array: Any, name: str, mask: Any) -> None:
        with with_capture_state(None):  # marked, Keras's function would be given other objects
            for x in same_as(array):
                give(x, name, mask)

    return _jax.Change(masking, "get_tensor_attr", mask_of), _jax.Change(masking, "set_tensor_attr", give_mask)


def _likes_of(value: Any) -> list[weakref.ref[Any]] | None:
    found = _likes.get(id(value))
    return found[1] if found is not None and found[0]() is value else None


def _keep(value: Any, likes: list[weakref.ref[Any]], before: Any) -> None:
    key = id(value)

    def forget(gone: weakref.ref[Any]) -> None:
        if (found := _likes.get(key)) is not None and found[0] is gone:
            del _likes[key]

    ref = weakref.ref(value, forget)
    likes.append(ref)
    _likes[key] = ref, likes, before if _keepers else None
