"""Layouts: which attributes an object has, and which of them are data.

Thousands of objects of one class have the same attributes, so a layout is made once and shared (other systems call this
a hidden class or a shape). Two layouts with the same content are the same object: they compare and hash by identity,
which makes comparing the structure of two models cheap. A layout stays alive while it is
used, and keeps alive the layouts that were reached from it by adding or removing an attribute.
"""

from __future__ import annotations

import operator
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import jax

from sonde.nnx.states import traversals

_known: weakref.WeakValueDictionary[Any, Layout] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def _getter(names: tuple[Any, ...]) -> Callable[[Mapping[Any, Any]], tuple[Any, ...]]:
    """A function from a mapping to the tuple of its values at some names."""
    if len(names) > 1:
        return operator.itemgetter(*names)
    if names:
        (name,) = names
        return lambda values: (values[name],)
    return lambda values: ()


class Layout:
    """Names of attributes with their status: True for data, False for static.

    Attributes:
        status: From name to status.
        names: All names, in the order of states.
        data: The names of data attributes, in the order of states.
        static: The other names.
        size: How many names there are.
        turns: For each of `names`, whether it is data and its position in `data` or `static`.
        get_data: From a dict of attributes to the tuple of the values of the data attributes.
        get_static: The same for the static attributes.
        data_then_static: All names, those of data first.
    """

    __slots__ = (
        "__weakref__",
        "_steps",
        "data",
        "data_keys",
        "data_then_static",
        "get_data",
        "get_static",
        "names",
        "size",
        "static",
        "status",
        "turns",
    )

    def __init__(self, status: Mapping[Any, bool]):
        self.names = tuple(traversals.sorted_keys(status))
        self.status = {name: status[name] for name in self.names}
        self.data = tuple(name for name in self.names if status[name])
        self.static = tuple(name for name in self.names if not status[name])
        self.data_keys = tuple(
            jax.tree_util.SequenceKey(name) if isinstance(name, int) else jax.tree_util.GetAttrKey(name)
            for name in self.data
        )
        self.data_then_static = self.data + self.static
        self.size = len(self.names)
        self.turns = tuple(
            (name, status[name], (self.data if status[name] else self.static).index(name)) for name in self.names
        )
        self.get_data = _getter(self.data)
        self.get_static = _getter(self.static)
        self._steps: dict[tuple[Any, bool | None], Layout] = {}

    def having(self, name: str | int, status: bool) -> Layout:
        """The layout with one more name, or with the status of a name changed."""
        step = (name, status)
        layout = self._steps.get(step)
        if layout is None:
            layout = self._steps[step] = layout_of({**self.status, name: status})
        return layout

    def lacking(self, name: str | int) -> Layout:
        """The layout without a name."""
        step = (name, None)
        layout = self._steps.get(step)
        if layout is None:
            layout = self._steps[step] = layout_of({k: v for k, v in self.status.items() if k != name})
        return layout

    def __reduce__(self) -> Any:
        return layout_of, (self.status,)

    def __repr__(self) -> str:
        return f"Layout(data={list(self.data)}, static={list(self.static)})"


def layout_of(status: Mapping[Any, bool]) -> Layout:
    """The one layout with this content."""
    key = frozenset(status.items())
    layout = _known.get(key)
    if layout is None:
        with _lock:
            layout = _known.get(key)
            if layout is None:
                _known[key] = layout = Layout(status)
    return layout


EMPTY = layout_of({})
