"""Filters over collection and random-stream names: which of them a run may change, a transform lifts, and so on.

A filter is a bool (all or none), one name, a container of names, or `DenyList(filter)` for everything else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeGuard, TypeVar, cast

from sonde.errors import InvalidFilterError

T = TypeVar("T")
Filter: TypeAlias = "bool | str | Collection[str] | DenyList | Both | Either"


@dataclasses.dataclass(frozen=True, eq=True)
class DenyList:
    """Chooses every name that `deny` does not choose.

    Example:
        >>> matches(DenyList("params"), "params"), matches(DenyList("params"), "cache")
        (False, True)
    """

    deny: Filter


def _is_deny_list(filter: Filter) -> TypeGuard[DenyList]:
    """Whether a filter is a `DenyList`, of Sonde or of `flax.core`."""
    return hasattr(filter, "deny")


def _is_open(filter: Filter) -> bool:
    """Whether a filter may choose names that it does not list."""
    return isinstance(filter, bool) or _is_deny_list(filter)


def matches(filter: Filter, name: str) -> bool:
    """Whether a filter chooses a name.

    Raises:
        InvalidFilterError: `filter` is not a valid filter.
    """
    if isinstance(filter, bool):
        return filter
    if isinstance(filter, str):
        return filter == name
    if _is_deny_list(filter):
        return not matches(filter.deny, name)
    if isinstance(filter, Container):
        return name in filter
    raise InvalidFilterError(
        f"a filter of collections or random streams is a bool, a name, a collection of names or a DenyList; got "
        f"{filter!r} of type {type(filter).__name__}"
    )


def check(filter: Filter) -> Filter:
    """Returns `filter` if it is valid, raises InvalidFilterError otherwise."""
    matches(filter, "")
    return filter


def is_empty(filter: Filter) -> bool:
    """Whether a filter is known to choose nothing."""
    if _is_deny_list(filter):
        return filter.deny is True
    return filter is False or (not isinstance(filter, (bool, str)) and not filter)


@dataclasses.dataclass(frozen=True)
class Both:
    """Chooses the names that both filters choose."""

    first: Filter
    second: Filter

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and matches(self.first, name) and matches(self.second, name)


@dataclasses.dataclass(frozen=True)
class Either:
    """Chooses the names that at least one of several filters chooses."""

    filters: tuple[Filter, ...]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and any(matches(f, name) for f in self.filters)


def may_overlap(a: Filter, b: Filter) -> bool:
    """Whether there may be a name that both filters choose; False is certain.

    Example:
        >>> may_overlap(["cache"], "params"), may_overlap(DenyList("cache"), "params")
        (False, True)
    """
    if isinstance(a, Both):
        return may_overlap(a.first, b) and may_overlap(a.second, b)
    if isinstance(a, Either):
        return any(may_overlap(f, b) for f in a.filters)
    if isinstance(b, (Both, Either)):
        return may_overlap(b, a)
    # Open filters choose names that cannot be listed, so their emptiness decides.
    if _is_open(a):
        return not is_empty(a) and (not is_empty(b) if _is_open(b) else may_overlap(b, a))
    return any(matches(b, name) for name in ([a] if isinstance(a, str) else cast(Collection[str], a)))


def hashable(filter: Filter) -> Filter:
    """The same filter in a form that can be part of a cache key."""
    if isinstance(filter, (bool, str)):
        return filter
    if _is_deny_list(filter):
        return DenyList(hashable(filter.deny))
    if isinstance(filter, Both):
        return Both(hashable(filter.first), hashable(filter.second))
    if isinstance(filter, Either):
        return Either(tuple(hashable(f) for f in filter.filters))
    return frozenset(cast(Collection[str], filter))


def partition(items: Mapping[str, T], filters: Sequence[Filter]) -> tuple[dict[str, T], ...]:
    """Puts each item into the group of the first filter that chooses its name; others are left out.

    Example:
        >>> partition({"params": 1, "cache": 2, "stats": 3}, ["cache", DenyList("params")])
        ({'cache': 2}, {'stats': 3})
    """
    groups: tuple[dict[str, T], ...] = tuple({} for _ in filters)
    for name, item in items.items():
        index = first_match(filters, name)
        if index is not None:
            groups[index][name] = item
    return groups


def first_match(filters: Iterable[Filter], name: str) -> int | None:
    """The index of the first filter that chooses the name."""
    return next((i for i, f in enumerate(filters) if matches(f, name)), None)
