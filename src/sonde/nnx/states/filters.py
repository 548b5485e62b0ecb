"""Filters: short ways to say which leaves (or Modules) of a model are meant.

| literal | means |
|---|---|
| a type | values of that type, and Variables of that class |
| a string | values whose metadata entry `tag` is that string |
| `...`, `True` | everything |
| `None`, `False` | nothing |
| a tuple or list of filters | any of them |
| a function of (path, value) | itself |

`to_predicate` turns any of them into a function of (path, value).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any as AnyType
from typing import TypeAlias

Key: TypeAlias = AnyType
PathParts: TypeAlias = tuple[Key, ...]
Predicate: TypeAlias = Callable[[PathParts, AnyType], bool]
FilterLiteral: TypeAlias = "type | str | Predicate | bool | EllipsisType | None"
Filter: TypeAlias = "FilterLiteral | tuple[AnyType, ...] | list[AnyType]"


def to_predicate(filter: Filter) -> Predicate:
    """The function of (path, value) that a filter stands for.

    Raises:
        TypeError: It is none of the known forms.

    Example:
        >>> from sonde import nnx
        >>> nnx.filterlib.to_predicate((nnx.Param, "head"))
        Any(OfType(Param), WithTag('head'))
    """
    if isinstance(filter, str):
        return WithTag(filter)
    if isinstance(filter, type):
        return OfType(filter)
    if filter is Ellipsis or filter is True:
        return Everything()
    if filter is None or filter is False:
        return Nothing()
    if callable(filter):
        return filter
    if isinstance(filter, (list, tuple)):
        return Any(*filter)
    raise TypeError(
        f"Not a filter: {filter!r} of type {type(filter).__name__}. A filter is a type, a string (a tag), `...`, True, "
        f"False, None, a function of (path, value), or a tuple or list of filters."
    )


def filters_to_predicates(filters: Sequence[Filter]) -> tuple[Predicate, ...]:
    """The predicates of filters, which are tried in order.

    Raises:
        ValueError: A filter that matches everything comes before another one, which could then match nothing.
    """
    for i, filter in enumerate(filters):
        later_filters = filters[i + 1 :]
        if (filter is Ellipsis or filter is True) and any(f is not Ellipsis and f is not True for f in later_filters):
            raise ValueError(
                f"filter {i} of {len(filters)} is {filter}, which takes everything, so the filters after it would "
                "never match: move `...` or True to the end."
            )
    return tuple(map(to_predicate, filters))


@dataclasses.dataclass(frozen=True, repr=False)
class OfType:
    """Values of a type, and Variables of that class."""

    type: type

    def __call__(self, path: PathParts, x: AnyType) -> bool:
        """Whether the filter matches."""
        del path
        return isinstance(x, self.type)

    def __repr__(self) -> str:
        return f"OfType({self.type.__name__})"


@dataclasses.dataclass(frozen=True, repr=False)
class WithTag:
    """Values whose `tag` is the one given."""

    tag: str

    def __call__(self, path: PathParts, x: AnyType) -> bool:
        """Whether the filter matches."""
        del path
        return getattr(x, "tag", None) == self.tag

    def __repr__(self) -> str:
        return f"WithTag({self.tag!r})"


@dataclasses.dataclass(frozen=True, repr=False)
class PathContains:
    """Values whose path has the given key; with `exact=False`, a key that contains it as text."""

    key: Key
    exact: bool = True

    def __call__(self, path: PathParts, x: AnyType) -> bool:
        """Whether the filter matches."""
        del x
        return self.key in path if self.exact else any(str(self.key) in key for key in map(str, path))

    def __repr__(self) -> str:
        return f"PathContains({self.key!r}, exact={self.exact})"


class _ByContent:
    """Filters are equal when they are of one class and made of equal parts."""

    _content: AnyType

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._content == getattr(other, "_content", None)

    def __hash__(self) -> int:
        return hash((type(self), self._content))


class PathIn(_ByContent):
    """Values at one of the given paths."""

    def __init__(self, *paths: PathParts):
        self.paths = self._content = frozenset(map(tuple, paths))

    def __call__(self, path: PathParts, x: AnyType) -> bool:
        """Whether the filter matches."""
        del x
        return path in self.paths

    def __repr__(self) -> str:
        return f"PathIn({', '.join(map(repr, sorted(self.paths, key=str)))})"


class _Combination(_ByContent):
    def __init__(self, *filters: Filter):
        self.predicates = self._content = tuple(map(to_predicate, filters))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.predicates))})"


class Any(_Combination):
    """Values that at least one of the filters matches."""

    def __call__(self, path: PathParts, x: AnyType) -> bool:
        """Whether the filter matches."""
        return any(predicate(path, x) for predicate in self.predicates)


class All(_Combination):
    """Values that all filters match."""

    def __call__(self, path: PathParts, x: AnyType) -> bool:
        """Whether the filter matches."""
        return all(predicate(path, x) for predicate in self.predicates)


class Not(_Combination):
    """Values that the filter does not match."""

    def __init__(self, collection_filter: Filter, /):
        super().__init__(collection_filter)

    def __call__(self, path: PathParts, x: AnyType) -> bool:
        """Whether the filter matches."""
        return not self.predicates[0](path, x)


class Everything(_Combination):
    """Everything."""

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, path: PathParts, x: AnyType) -> bool:
        """Whether the filter matches."""
        del path, x
        return True


class Nothing(_Combination):
    """Nothing."""

    def __init__(self) -> None:
        super().__init__()

    def __call__(self, path: PathParts, x: AnyType) -> bool:
        """Whether the filter matches."""
        del path, x
        return False
