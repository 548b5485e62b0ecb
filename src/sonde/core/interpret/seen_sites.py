"""What a handler has met: which sites, and how many times each ran, because an edit may apply to the third call only.

What is met inside a program that is rewritten once and used again is kept with the program (`SeenSites.alone`,
`CallCounts.after`), and is noted once more with every use.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from sonde.core.marks.path import Pattern
from sonde.core.marks.site import Gates, Site, exclude_each_other

Counts = dict[str, dict[Gates, int]]


class CallCounts:
    """The number of calls so far, by path. A handler and all its children share one.

    Under `vmap` all branches of a choice run, one after the other. Sites of two branches do not count each other, so
    the calls of a path are kept apart by the gates under which they ran.

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
        self._calls: Counts = {}
        self._gated: set[str] = set()  # the paths that may have calls under gates

    def next(self, path: str, gates: Gates = frozenset()) -> int:
        """The number of the call that runs now, from 0, in the branches that these gates stand for."""
        calls = self._calls.get(path, {})
        if gates:
            self._gated.add(path)
        if path in self._gated:
            calls = _with_open(frozenset(gate.choice for gate in gates), calls)
        number = max((n for before, n in calls.items() if not exclude_each_other(before, gates)), default=0)
        self._calls[path] = {**calls, gates: number + 1}  # a new dict: a mark may hold the old one
        return number

    def items(self) -> Iterator[tuple[str, int]]:
        """Every path, and how many times it ran."""
        return ((path, max(calls.values())) for path, calls in self._calls.items())

    def mark(self) -> Counts:
        """The current counts, to return to before the next branch of a `cond` or another run of a rule."""
        return dict(self._calls)

    def return_to(self, mark: Counts) -> None:
        """Continues from a mark."""
        self._calls.clear()
        self._calls.update(mark)

    def join(self, marks: Iterable[Counts]) -> None:
        """After branches that ended at these marks: a site counts as often as in the branch that ran it most often."""
        for mark in marks:
            for path, calls in mark.items():
                joined = dict(self._calls.get(path, {}))
                for gates, n in calls.items():
                    joined[gates] = max(n, joined.get(gates, 0))
                self._calls[path] = joined

    def leave(self, open_choices: frozenset[object]) -> None:
        """After choices: only these are still open. The calls in branches of others count for all that follows."""
        for path in self._gated:
            if path in self._calls:
                self._calls[path] = _with_open(open_choices, self._calls[path])

    # -- for programs that are rewritten once and used again -----------------------------------------------------------

    @property
    def key(self) -> Hashable:
        """What rewriting depends on; None if it does not depend on the calls."""
        if not self.matter:
            return None
        calls = frozenset((path, frozenset(calls.items())) for path, calls in self._calls.items())
        return calls, _frozen(self.first_calls)

    def after(self) -> Any:
        """What is known when a program has been rewritten."""
        return self.mark() if self.matter else None, _frozen(self.replaced), _frozen(self.first_calls)

    def repeat(self, after: Any) -> None:
        """Makes what `after` returned known once more, for another use of the program with an equal `key` before it."""
        mark, *tables = after
        if mark is not None:
            self.return_to(mark)
            self._gated.update(path for path, calls in mark.items() if any(calls))
        for own, table in zip((self.replaced, self.first_calls), tables):
            for key, numbers in table:
                own.setdefault(key, set()).update(numbers)


def _with_open(open_choices: frozenset[object], calls: dict[Gates, int]) -> dict[Gates, int]:
    """The calls of a path, with the gates of choices that are open alone."""
    remaining: dict[Gates, int] = {}
    for gates, n in calls.items():
        still_open = frozenset(gate for gate in gates if gate.choice in open_choices)
        remaining[still_open] = max(n, remaining.get(still_open, 0))
    return remaining


def _frozen(numbers: dict[Hashable, set[int]]) -> frozenset[tuple[Hashable, frozenset[int]]]:
    return frozenset([(key, frozenset(of_key)) for key, of_key in numbers.items()])


class SeenSites:
    """What a handler has met.

    Its parts are made on first use. A capture of jitted functions does not use them; what is met inside is kept with
    the programs.

    Attributes:
        paths: The paths of all sites, chosen or not, in program order (a dict for its order).
        sites: The sites whose values were met, and how many times each had been differentiated.
        wanted: The sites whose values were recorded, so that their gradients are too.
        used: The patterns that chose something.
        backward: The sites whose gradients were met, each with its order.
        around: What was met before, while something inside runs.
    """

    __slots__ = ("_inside", "around", "backward", "paths", "sites", "used", "wanted")

    paths: dict[str, None]
    sites: dict[Site, frozenset[int]]
    wanted: set[Site]
    used: set[Pattern]
    backward: set[tuple[Site, int]]

    def __init__(self, around: SeenSites | None = None) -> None:
        self.around = around
        self._inside: list[SeenSites] | None = []  # what to take over; None once the parts are made

    def __getattr__(self, name: str) -> Any:
        inside, self._inside = self._inside, None
        if inside is None:
            raise AttributeError(name)
        self.paths, self.sites, self.wanted, self.used, self.backward = {}, {}, set(), set(), set()
        for handler in inside:
            self.update(handler)
        return getattr(self, name)

    def child(self) -> SeenSites:
        """The `SeenSites` for the inside of something: starts empty, and knows what was met before."""
        return SeenSites(self)

    def alone(self) -> SeenSites:
        """What was met here, without what was met before: it can be kept with a program."""
        separate = SeenSites()
        separate._inside = None
        separate.paths, separate.sites, separate.wanted = self.paths, self.sites, self.wanted
        separate.used, separate.backward = self.used, self.backward
        return separate

    def has_met(self, site: Site) -> bool:
        """Whether the value of a site was met, here or before."""
        return site in self.sites or (self.around is not None and self.around.has_met(site))

    def wants_gradient(self, site: Site) -> bool:
        """Whether the value of a site was recorded, here or before."""
        return site in self.wanted or (self.around is not None and self.around.wants_gradient(site))

    @property
    def passes(self) -> frozenset[int]:
        """The differentiations that ran backward, counted from the outermost one.

        From there the count is the same for a value inside a further differentiation, such as a `jax.jvp`, and for one
        outside of it.
        """
        if self._inside is not None and not any(handler.backward for handler in self._inside):
            return frozenset()
        # A site that was differentiated n times has gradients of the orders 0, the innermost, to n - 1. A site whose
        # value was not met was differentiated at least once more than the order of its gradient.
        return frozenset(
            n - 1 - order for site, order in self.backward for n in self.sites.get(site, {order + 1}) if n > order
        )

    def update(self, other: SeenSites) -> None:
        """Merges what a child handler noted about its sites into this one."""
        if self._inside is not None and other.around is None:
            self._inside.append(other)
            return
        self.paths.update(other.paths)
        if self.sites:
            for site, orders in other.sites.items():
                self.sites[site] = self.sites.get(site, orders) | orders
        else:
            self.sites.update(other.sites)
        self.wanted |= other.wanted
        self.used |= other.used
        self.backward |= other.backward
