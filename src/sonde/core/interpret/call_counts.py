"""How many times each site ran, because an edit may apply to the third call only."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any


class CallCounts:
    """The number of calls so far, by path. A handler and all its children share one.

    Attributes:
        matter: Whether what is done at sites depends on the calls, so that a program that was rewritten for one number
            of calls before it does not serve for another.
        replaced: The calls that were replaced, by pattern.
        first_calls: Of sites that may run again in a recomputation: as which calls they ran first, by what they asked.
    """

    def __init__(self) -> None:
        self.matter = False
        self.replaced: dict[Hashable, set[int]] = {}
        self.first_calls: dict[Hashable, set[int]] = {}
        self._calls: dict[str, int] = {}

    def next(self, path: str) -> int:
        """The number of the call that runs now, from 0."""
        number = self._calls.get(path, 0)
        self._calls[path] = number + 1
        return number

    def items(self) -> Iterable[tuple[str, int]]:
        """Every path, and how many times it ran."""
        return self._calls.items()

    def mark(self) -> dict[str, int]:
        """The current counts, to return to before the next branch of a `cond` or another run of a rule."""
        return dict(self._calls)

    def return_to(self, mark: dict[str, int]) -> None:
        """Continues from a mark."""
        self._calls.clear()
        self._calls.update(mark)

    def join(self, marks: Iterable[dict[str, int]]) -> None:
        """After branches that ended at these marks: a site counts as often as in the branch that ran it most often."""
        for mark in marks:
            for path, count in mark.items():
                self._calls[path] = max(count, self._calls.get(path, 0))

    # -- for programs that are rewritten once and used again -----------------------------------------------------------

    @property
    def key(self) -> Hashable:
        """What rewriting depends on; None if it does not depend on the calls."""
        return (tuple(sorted(self._calls.items())), _frozen(self.first_calls)) if self.matter else None

    def since(self, mark: dict[str, int]) -> Any:
        """What rewriting a program has changed since a mark."""
        more = {path: n - mark.get(path, 0) for path, n in self._calls.items()} if self.matter else {}
        return more, _frozen(self.replaced), _frozen(self.first_calls)

    def repeat(self, since: Any) -> None:
        """Makes the changes that `since` returned once more, for another use of the program."""
        more, *tables = since
        for path, n in more.items():
            self._calls[path] = self._calls.get(path, 0) + n
        for own, table in zip((self.replaced, self.first_calls), tables):
            for key, numbers in table:
                own.setdefault(key, set()).update(numbers)


def _frozen(numbers: dict[Hashable, set[int]]) -> frozenset[tuple[Hashable, frozenset[int]]]:
    return frozenset([(key, frozenset(of_key)) for key, of_key in numbers.items()])
