"""Immutable collections of results: a mapping by path, and a list of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

from sonde.core.marks.path import no_such_site

T = TypeVar("T")


class ByPath(Mapping[str, T]):
    """Results by path, in program order. The error for a missing path names the nearest."""

    def __init__(self, found: Mapping[str, T]) -> None:
        self._found = dict(found)

    def __getitem__(self, path: str) -> T:
        try:
            return self._found[path]
        except KeyError:
            raise KeyError(str(no_such_site(path, self._found))) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Rows(Sequence[T]):
    """Results one after the other."""

    def __init__(self, rows: Iterable[T]) -> None:
        self._rows = tuple(rows)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...
    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[T]:
        return iter(self._rows)
