"""Dataclasses from parsed JSON, strictly: a file may hold anything, whatever wrote it.

Whole numbers in the files of a store are counts, places and checksums, so they are not negative.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sonde.store.format.sealed import damaged, unseal

_LARGEST = 1 << 62
_NAMES = {int: "a whole number", str: "a text", bool: "true or false", dict: "an object"}
T = TypeVar("T")


def decoded(kind: type[T], data: bytes, name: str, where: str) -> T:
    """What a sealed file holds, as a dataclass.

    Args:
        kind: The dataclass. Classes in it that have a method `from_json` are decoded by that.
        data: The bytes of the file.
        name: Its name, for messages.
        where: The folder, for messages.

    Raises:
        StoreError: The bytes are not those that were written, or an entry has another type; the message names it.
    """
    contents = unseal(data, name, where)
    try:
        return _decoder(kind)(contents)
    except _OddEntry as error:
        raise damaged(name, where, f"{error.place.lstrip('.') or 'it'} {error}") from error


class _OddEntry(ValueError):
    """An entry that cannot be what it is; its place is put together on the way out."""

    place = ""

    @classmethod
    def of(cls, value: Any, expected: str) -> _OddEntry:
        shown = repr(value)
        return cls(f"is {shown if len(shown) <= 80 else f'{shown[:77]}...'}, not {expected}")

    def below(self, place: str) -> _OddEntry:
        self.place = place + self.place
        return self


@functools.cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    """The function that makes such a value of parsed JSON."""
    if hasattr(kind, "from_json"):
        return functools.partial(_by_class, kind.from_json)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {f.name: _decoder(hints[f.name]) for f in dataclasses.fields(kind)}
        make: Callable[..., Any] = typing.cast(Any, kind)
        return functools.partial(_object, make, fields)
    if typing.get_origin(kind) is tuple:
        return functools.partial(_list, _decoder(typing.get_args(kind)[0]))
    return functools.partial(_plain, dict if typing.get_origin(kind) is Mapping else kind)


def _plain(kind: type, value: Any) -> Any:
    # A bool is an int by isinstance.
    if type(value) is not kind or (kind is int and not 0 <= value < _LARGEST):
        raise _OddEntry.of(value, _NAMES[kind])
    return value


def _list(element: Callable[[Any], Any], value: Any) -> tuple[Any, ...]:
    if type(value) is not list:
        raise _OddEntry.of(value, "a list")
    elements: list[Any] = []
    try:
        for one in value:
            elements.append(element(one))
    except _OddEntry as error:
        raise error.below(f"[{len(elements)}]") from error
    return tuple(elements)


def _object(kind: Callable[..., Any], entries: Mapping[str, Callable[[Any], Any]], value: Any) -> Any:
    if type(value) is not dict or value.keys() != entries.keys():
        raise _OddEntry.of(value, f"an object with {', '.join(entries)}")
    arguments = {}
    for name, decode in entries.items():
        try:
            arguments[name] = decode(value[name])
        except _OddEntry as error:
            raise error.below(f".{name}") from error
    return _by_class(lambda told: kind(**told), arguments)


def _by_class(decode: Callable[[Any], Any], value: Any) -> Any:
    try:
        return decode(value)
    except (ValueError, TypeError) as error:
        raise _OddEntry(f"is not possible: {error}") from error
