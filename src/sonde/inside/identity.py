"""Whether two values are one object to a program whose marked values are others.

For gradients a value passes through its site and comes out as another object. Code that asks `a is b` of arrays, as
`equinox.tree_at` does to find a leaf in a tree, must get the answer that it gets without marks. So what comes out of a
site is the same as what went in, and all of those are the same as one another. Not so while an edit runs: the value
that comes out may be a new one.
"""

from __future__ import annotations

import weakref
from typing import Any

from sonde import _jax

# For a value that went into sites or came out of them, by identity: an object that all of its like share.
_origins: dict[int, tuple[weakref.ref[Any], object]] = {}


def note(before: Any, after: Any) -> None:
    """Takes note of what came out of a site for a value."""
    origin = _origin(before)
    if origin is None:
        origin = object()
        _keep(before, origin)
    _keep(after, origin)


def is_same(a: Any, b: Any) -> bool:
    """What `a is b` says in the program without marks."""
    if a is b:
        return True
    if not isinstance(a, _jax.Tracer) or not isinstance(b, _jax.Tracer):
        return False
    origin = _origin(a)
    return origin is not None and origin is _origin(b)


def _origin(value: Any) -> object | None:
    found = _origins.get(id(value))
    return found[1] if found is not None and found[0]() is value else None


def _keep(value: Any, origin: object) -> None:
    key = id(value)

    def forget(gone: weakref.ref[Any]) -> None:
        if (found := _origins.get(key)) is not None and found[0] is gone:
            del _origins[key]

    _origins[key] = weakref.ref(value, forget), origin
