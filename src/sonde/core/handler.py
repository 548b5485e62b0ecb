"""What happens at a site. One set of rules carries sites through JAX's transforms; handlers decide what is done there.

A handler may look at the value (`record`), put another in its place (`replace`), or both. It never sees loops, branches
or jitted calls: the rules run a child of it inside them, and what the child recorded comes out as extra outputs. Arrays
that a handler needs inside, such as the ones an edit puts in place, are closed over; the rules turn them into extra
inputs. What must be another array in every iteration is asked for with `loop_inputs`.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any, Self

import numpy as np

from sonde.core.item import Bundle, Item
from sonde.core.path import Pattern, matches, no_such_site
from sonde.core.primitive import TOKEN, n_arrays, site_p
from sonde.core.site import Site, View


class Handler:
    """The part that all handlers share: names seen, tokens, passing sites on to an enclosing handler.

    Attributes:
        key: What rewritten jaxprs are cached by; None if they must not be.
        patterns: Globs or predicates that must match something.
        start: The length of the path under which the handler itself runs, which is not part of the paths it reports.
        passes_on: Whether an enclosing handler wants to see the sites too.
        items: What was recorded, in program order.
        seen: The paths of all sites met, chosen or not (a dict for its order).
        backward: The orders of differentiation whose backward pass was met.
    """

    # Whether a jaxpr may be rewritten by moving variables only, without running the handler on values.
    records_only = False
    # Whether children inside loops are given the number of the iteration, as the first of their steps.
    counts_iterations = False
    # How many of the last iterations of a while loop are kept.
    last = 1
    # How what was kept of earlier iterations of a while loop and what a new one recorded become one: a function of the
    # old leaves, the new leaves and the number of the iteration. None: the new ones.
    fold: Any = None

    def __init__(
        self, key: Hashable, patterns: tuple[Pattern, ...], *, start: int = 0, passes_on: bool = False
    ) -> None:
        self.key = key
        self.patterns = patterns
        self.start = start
        self.passes_on = passes_on
        self.items: list[Item | Bundle] = []
        self.seen: dict[str, None] = {}
        self.used: set[Pattern] = set()
        self.backward: set[int] = set()
        self._base: Any = 1
        self._next_offset = 1
        self._sites_here: set[Site] = set()

    # -- for the rules -------------------------------------------------------------------------------------------------

    def child(self, base: Any = 1, steps: Sequence[Any] = ()) -> Self:
        """The handler that runs inside a loop body, branch or jitted function.

        Args:
            base: The token that the sites inside start from.
            steps: This iteration's slices of what `loop_inputs` returned, if inside a loop.
        """
        del steps
        new = copy.copy(self)
        new.items, new.seen, new.used, new.backward, new._sites_here = [], {}, set(), set(), set()
        new._base, new._next_offset = base, 1
        return new

    def adopt(self, other: Handler | Any) -> None:
        """Takes over which sites a child, or the rewritten jaxpr it ran in, has met."""
        self.seen.update(other.seen)
        self.used |= other.used
        self.backward |= other.backward

    def loop_inputs(self, body: Any, length: int, reverse: bool) -> list[Any]:
        """Arrays to be scanned along with a loop, one slice of which every iteration's child is given."""
        del body, length, reverse
        return []

    def mark_calls(self) -> Any:
        """Where the counting of calls stands, for going back to before the next branch of a `cond`."""

    def return_to(self, mark: Any) -> None:
        """Goes back to where the counting of calls stood."""

    def join_calls(self, marks: Sequence[Any]) -> None:
        """Goes on counting after branches that ended at these marks."""

    def skip(self, span: int) -> int:
        """Sets `span` tokens aside; returns how far from the base they start."""
        offset = self._next_offset
        self._next_offset += span
        return offset

    def allot(self, span: int) -> Any:
        """The first of `span` tokens that nobody else will use."""
        return _as_token(self._base + self.skip(span))

    @property
    def span(self) -> int:
        """How many tokens were given out so far."""
        return self._next_offset

    def at_site(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """Deals with a site; runs under the trace of the program around. Returns the outputs of the site primitive."""
        n = n_arrays(args, view)
        arrays, rest = list(args[:n]), args[n:]
        self.seen[site.path[self.start :]] = None
        if not view.is_value:
            self.backward.add(view.order)
        arrays = self.replace(arrays, site, view)
        gives_token = view.is_value and site.grads
        token = None
        if self.passes_on:
            outs = site_p.bind(*arrays, *rest, site=site, view=view)
            arrays = list(outs[:n])
            token = outs[n] if gives_token else None
        elif gives_token:
            token = self.token(site)
        gate = rest[0] if view.is_value and view.gated else None
        self.record(arrays, site, view, token=token if view.is_value else rest[0], gate=gate)
        return [*arrays, token] if gives_token else arrays

    def token(self, site: Site) -> Any:
        """The token of a site that is met now."""
        if site in self._sites_here:  # a jaxpr that was inlined twice
            return self.allot(1)
        self._sites_here.add(site)
        return _as_token(self._base)

    def chosen(self, site: Site) -> list[Pattern]:
        """The patterns that choose a site, in the order given."""
        if self.start:
            path = site.path[self.start :]
            site = copy.copy(site)
            site.path = path
        found = [pattern for pattern in self.patterns if matches(pattern, site)]
        self.used.update(found)
        return found

    def finish(self) -> None:
        """Raises NoSuchSiteError for a pattern that chose nothing."""
        for pattern in self.patterns:
            if pattern not in self.used:
                raise no_such_site(pattern, self.seen)

    # -- for the kinds of handlers -------------------------------------------------------------------------------------

    def replace(self, arrays: list[Any], site: Site, view: View) -> list[Any]:
        """The arrays that the program goes on with."""
        del site, view
        return arrays

    def record(self, arrays: list[Any], site: Site, view: View, *, token: Any, gate: Any) -> None:
        """Remembers the arrays, if wanted."""


def _as_token(number: Any) -> Any:
    return np.asarray(number, TOKEN) if isinstance(number, int) else number
