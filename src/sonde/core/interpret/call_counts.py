"""How many times each site ran, because an edit may apply to the third call only."""

from __future__ import annotations

from collections.abc import Iterable


class CallCounts:
    """The number of calls so far, by path. A handler and all its children share one."""

    def __init__(self) -> None:
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
