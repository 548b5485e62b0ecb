"""Whether two values are one object to a program whose marked values are others.

For gradients a value passes through its site and comes out as another object. Code that asks `a is b` of arrays, as
`equinox.tree_at` does to find a leaf in a tree, must get the answer that it gets without marks. So what comes out of a
site is the same as what went in, and all of those are the same as one another. Not so while an edit runs: the value
that comes out may be a new one. What a library keeps about an array, such as the masks of Keras, belongs to all of them
(`same_as`), also while an edit runs.
"""

from __future__ import annotations

import weakref
from typing import Any

from sonde import _jax
from sonde.core.context import looking

# For a value that went into sites or came out of them, by identity: itself, the list of those that are the same, and
# what went in if it came out, which lives as long, because libraries drop what they keep about an array with the array.
_likes: dict[int, tuple[weakref.ref[Any], list[weakref.ref[Any]], Any]] = {}


def note(before: Any, after: Any) -> None:
    """Takes note of what came out of a site for a value."""
    if after is before or not isinstance(after, _jax.Tracer):
        return
    likes = _likes_of(before)
    if likes is None:
        likes = []
        _keep(before, likes, None)
    _keep(after, likes, before)


def is_same(a: Any, b: Any) -> bool:
    """What `a is b` says in the program without marks."""
    if a is b:
        return True
    state = looking()
    if state is None or state.edits or not isinstance(a, _jax.Tracer) or not isinstance(b, _jax.Tracer):
        return False
    likes = _likes_of(a)
    return likes is not None and likes is _likes_of(b)


def same_as(value: Any) -> list[Any]:
    """The objects that stand for one value of the program without marks: all that still exist."""
    likes = _likes_of(value)
    return [value] if likes is None else [x for ref in likes if (x := ref()) is not None]


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
    _likes[key] = ref, likes, before
