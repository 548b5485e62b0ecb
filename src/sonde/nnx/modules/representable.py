"""Objects that say what their `repr` shows: the names of Flax's `nnx.reprlib`.

A class derives from `Representable` and yields, from `__nnx_repr__`, an `Object` with its type and then an `Attr` for
each entry. Colors are left out.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator
from typing import Any

from sonde.nnx.modules.pytree import Pytree
from sonde.nnx.states.state import FlatState, State
from sonde.nnx.variable.variable import Variable


@dataclasses.dataclass
class Object:
    """How an object is shown.

    Attributes:
        type: Its class, or its name.
        start: What opens the list of entries.
        end: What closes it.
        kv_sep: Separates the name of an entry from its value.
        indent: How far entries are indented.
        empty_repr: Shown between `start` and `end` if there are no entries.
        comment: Shown after `start`.
        same_line: Whether all entries are on one line.
    """

    type: str | type
    start: str = "("
    end: str = ")"
    kv_sep: str = "="
    indent: str = "  "
    empty_repr: str = ""
    comment: str = ""
    same_line: bool = False


@dataclasses.dataclass
class Attr:
    """An entry.

    Attributes:
        key: Its name.
        value: Its value.
        start: Shown before it.
        end: Shown after it.
        use_raw_value: Whether a value that is a string is shown as it is, without quotes.
        use_raw_key: Accepted, without effect: names are never quoted.
    """

    key: str
    value: Any
    start: str = ""
    end: str = ""
    use_raw_value: bool = False
    use_raw_key: bool = False


class Representable(abc.ABC):
    """A class whose `repr` shows what `__nnx_repr__` yields.

    Example:
        >>> from sonde.nnx import reprlib
        >>> class Point(reprlib.Representable):
        ...     def __nnx_repr__(self):
        ...         yield reprlib.Object(type(self))
        ...         yield reprlib.Attr("x", 3)
        >>> Point()
        Point(
          x=3
        )
    """

    @abc.abstractmethod
    def __nnx_repr__(self) -> Iterator[Object | Attr]:
        """How the object is shown, and its entries."""

    def __repr__(self) -> str:
        return get_repr(self)


for _shown in (Pytree, Variable, State, FlatState):
    Representable.register(_shown)


def get_repr(obj: Any) -> str:
    """The text of an object that has `__nnx_repr__`.

    Raises:
        TypeError: The first thing it yields is not an `Object`.
    """
    entries = iter(obj.__nnx_repr__())
    head = next(entries, None)
    if not isinstance(head, Object):
        raise TypeError(f"`__nnx_repr__` of {type(obj).__name__} must yield an Object first, not {head!r}.")
    name = head.type if isinstance(head.type, str) else head.type.__name__
    lines = [_line(entry, head) for entry in entries]
    opening = f"{name}{head.start}{head.comment}"
    if not lines:
        return f"{opening}{head.empty_repr}{head.end}"
    if head.same_line:
        return f"{opening}{', '.join(lines)}{head.end}"
    body = ",\n".join(head.indent + line.replace("\n", "\n" + head.indent) for line in lines)
    return f"{opening}\n{body}\n{head.end}"


def _line(entry: Any, head: Object) -> str:
    value = entry.value if entry.use_raw_value and isinstance(entry.value, str) else repr(entry.value)
    named = f"{entry.key}{head.kv_sep}" if entry.key else ""
    return f"{entry.start}{named}{value}{entry.end}"


class MappingReprMixin(Representable):
    """For mappings: shown as a dict with the name of the class."""

    def __nnx_repr__(self) -> Iterator[Object | Attr]:
        """The entries of the mapping."""
        yield Object(type(self), start="({", end="})", kv_sep=": ")
        mapping: Any = self
        for key, value in mapping.items():
            yield Attr(repr(key), value)


class SequenceReprMixin(Representable):
    """For sequences: shown as a list with the name of the class."""

    def __nnx_repr__(self) -> Iterator[Object | Attr]:
        """The entries of the sequence."""
        yield Object(type(self), start="([", end="])")
        sequence: Any = self
        for value in sequence:
            yield Attr("", value)


class PrettyMapping(MappingReprMixin, dict[Any, Any]):
    """A mapping that is shown line by line."""


class PrettySequence(SequenceReprMixin, list[Any]):
    """A sequence that is shown line by line."""
