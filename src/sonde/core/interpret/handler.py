"""What happens at a site. One set of rules carries sites through JAX's transforms; handlers decide what is done there.

A handler looks at values (`record`) and answers what edits ask (`supply`); new values are put in place by the program
itself (`core/edits`), so that JAX differentiates them. A handler never sees loops, branches or jitted calls: the rules
run a child of it inside them, and what the child recorded comes out as extra outputs. Where the child runs is its
`Position`. Arrays that a handler needs inside, such as the new values of an edit, are closed over; the rules turn them
into extra inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.interpret.call_tokens import new_token
from sonde.core.interpret.items import Bundle, Extra, Item, flat_arrays
from sonde.core.interpret.seen_sites import CallCounts, SeenSites
from sonde.core.interpret.where import Loop, Position, Where
from sonde.core.marks.operands import operands_of
from sonde.core.marks.path import Pattern, PatternsByPath, checked_name, matches, no_such_site
from sonde.core.marks.primitive import bind_site, site_p
from sonde.core.marks.site import Site, View, naming
from sonde.core.session.session import CaptureState


class Handler:
    """The part that all handlers share: names seen, tokens, passing sites on to an enclosing handler.

    Attributes:
        key: The cache key of rewritten jaxprs; None if they must not be cached.
        patterns: Globs or predicates that must match something.
        position: What is around the code that it runs on.
        items: What was recorded, in program order.
        met: What is known about the sites met so far; what a child met is added when it has finished.
        counts: How many times each site ran, for handlers that need it.
        runs_of_choices: How many times the programs with each choice ran; a handler and its children share it.
        passes_on: Whether an enclosing handler wants to see the sites too.
        outside: What the captures around want; None if there are none.
        values: What it needs at sites: a pytree of arrays and anything else. The rules make the arrays operands of
            what they bind, because a program that is kept may not close over the arrays of one run.
    """

    # Whether a jaxpr may be rewritten by moving variables only, without running the handler on values.
    records_only = False
    # Whether what is done at a site depends on the loops around it, beside those that have a name.
    knows_loops = False
    # Whether it depends on the iteration, too, whose number children inside loops get as the first of their steps.
    counts_iterations = False
    # Whether every run of a loop is a separate object in `Item.loops`, even if it was compiled once.
    tells_loops_apart = False
    # Whether all arrays that a reduce function returned get the axes of a mesh over which one of them varies.
    reduced_have_all_axes = True
    # Whether gradients are wanted.
    grads = False
    # Whether jitted functions with sites may donate their arguments. Do not donate if the results are discarded.
    donates = True
    # How many of the last iterations of a while loop are kept.
    last = 1
    # Whether a while loop continues only where `values` is true.
    stops_loops = False
    # If sites must not be inside the call of a function with its own derivatives: the handler for the call. The
    # function is then run once more, outside the call, for its sites.
    in_custom_calls: Handler | None = None

    def __init__(self, key: Hashable, patterns: tuple[Pattern, ...]) -> None:
        self.key = key
        self.patterns = patterns
        self._patterns = PatternsByPath(patterns)
        self.items: list[Item | Bundle] = []
        self.met = SeenSites()
        self.counts = CallCounts()
        self.runs_of_choices: dict[object, int] = {}
        self.values: Any = ()
        # The first token of the sites here. Several sites may have it, because tokens only tell the calls of one site
        # apart; what is rewritten inside gets a span of further ones, at an offset from it.
        self._base: Any = 1
        self._next_offset = 1
        self._sites_here: set[Site] = set()
        self.passes_on = False
        self.outside: CaptureState | None = None
        self.position = Position()

    def begin(self, depth: int, outside: CaptureState | None = None) -> Self:
        """Begins a run at which so many handlers are nested, this one included."""
        self.outside = outside
        self.passes_on = self.passes_on or depth > 1
        self.position = Position(depth, _jax.count_open_names())
        return self

    @property
    def depth(self) -> int:
        """How many handlers are nested around, itself included."""
        return self.position.depth

    def __copy__(self) -> Self:
        # Every jitted call makes one: `copy` alone would take four times as long.
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def at(self, position: Position) -> Self:
        """A copy of the handler, elsewhere in the program."""
        moved = copy.copy(self)
        moved.position = position
        return moved

    # -- for the rules -------------------------------------------------------------------------------------------------

    def entering(self, loop: Loop | None = None) -> Self:
        """The handler whose child is about to run inside something, in an iteration of a loop if one is given."""
        position = self.position.entering(loop, keeps_loop=self.knows_loops)
        return self if position is self.position else self.at(position)

    def child(self, base: Any = 1, steps: Sequence[Any] = ()) -> Self:
        """The handler of code that begins now, of one that `entering` has made.

        Args:
            base: The token that the sites inside start from.
            steps: If inside a loop, what `loop_steps` gives this iteration.
        """
        position = self.position.begun()
        inner = self.at(position.in_iteration(steps[:1]) if self.counts_iterations else position)
        inner.items, inner._sites_here, inner.met = [], set(), self.met.child()
        inner._base, inner._next_offset = base, 1
        return inner

    def quietly(self) -> Self:
        """A handler that does the same, but does not pass sites on."""
        inner = self.entering().child()
        inner.passes_on = False
        return inner

    def carried(self) -> list[Any]:
        """The traced values that the handler holds: functions that are traced later must get them again."""
        return [x for x in jax.tree.leaves(self._held) if _is_carried(x)]

    def carrying(self, carried: Sequence[Any]) -> Self:
        """A handler with these in place of what `carried` returned."""
        remaining = iter(carried)
        base, values, iteration = jax.tree.map(lambda x: next(remaining) if _is_carried(x) else x, self._held)
        inner = self.at(self.position.in_iteration(iteration))
        inner._base, inner.values = base, values
        return inner

    @property
    def _held(self) -> tuple[Any, Any, list[Any]]:
        return self._base, self.values, list(self.position.iteration)

    def arrays(self) -> list[Any]:
        """The arrays that rewritten programs take as inputs, so that they can be kept for other numbers."""
        return [jnp.asarray(x) for x in jax.tree.leaves(self.values) if is_argument(x)]

    def with_arrays(self, arrays: Sequence[Any]) -> Self:
        """A handler with these in place of those that `arrays` returned."""
        inner, remaining = copy.copy(self), iter(arrays)
        inner.values = jax.tree.map(lambda x: next(remaining) if is_argument(x) else x, self.values)
        return inner

    def loop_steps(self, length: int, reverse: bool) -> list[Any]:
        """Arrays to scan along with a loop; the child of each iteration gets its number in each."""
        if not self.counts_iterations:
            return []
        return [jnp.flip(jnp.arange(length)) if reverse else jnp.arange(length)]

    def skip(self, span: int) -> int:
        """Reserves `span` tokens; returns how far from the base they start."""
        offset = self._next_offset
        self._next_offset += span
        return offset

    def allot(self, span: int) -> Any:
        """The first of `span` tokens that are used nowhere else."""
        return _as_token(self._base + self.skip(span))

    @property
    def span(self) -> int:
        """How many tokens were given out so far."""
        return self._next_offset

    def at_site(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """Handles a site, under the trace of the program around. Returns the outputs of the site primitive."""
        if view.role == "supply":
            return self.supply(args, site, view)
        operands = operands_of(args, site, view)
        n, where = len(operands.arrays), self.meet(site, view, self.position.names) if self.sees(site) else None
        if self.passes_on:
            # What the handlers around return is recorded: the new value of an edit, and one token for all of them, so
            # that a gradient finds its value in every capture.
            outs = bind_site(operands, site, view)
            operands.arrays = list(outs[:n]) or operands.arrays
            token = outs[-1] if view.gives_token(site) else None
        else:
            token = self.token(site) if view.gives_token(site) else None
        if token is not None:
            operands.token = token
        if where is not None and view.role != "mark":  # the other half of the site, a look, is what is recorded
            self.record(operands.arrays, where, operands.extras)
        if view.role == "look":
            return []
        return operands.arrays if token is None else [*operands.arrays, token]

    def not_donated(self, args: Sequence[Any], donated: Sequence[bool]) -> list[Any]:
        """The arguments of a call that donates some of them, with copies of those that are recorded."""
        # XLA may reuse the memory of a donated argument, and the items hold on to the array that was the value.
        held = {id(x) for x in flat_arrays(self.items)}
        return [x.copy() if d and id(x) in held and isinstance(x, jax.Array) else x for x, d in zip(args, donated)]

    def sees(self, site: Site) -> bool:
        """Whether the site belongs to the capture of this handler, and not only to captures nested in it."""
        return (site.depths is None or self.depth in site.depths) and (
            site.handlers is None or self.depth in site.handlers
        )

    def token(self, site: Site) -> Any:
        """The token of a site that is met now."""
        if site in self._sites_here:  # a jaxpr that was inlined twice: its calls must be told apart
            return self.allot(1)
        self._sites_here.add(site)
        return _as_token(self._base)

    def locate(self, site: Site, view: View, names: tuple[Any, ...]) -> Where:
        """Where the program is at a site, in scopes with these names that were opened in the code."""
        position = self.position
        path = position.path(names) + site.path
        if "*" in path:
            checked_name(path)  # the names of modules were not checked: they may be anything
        if position.loops:
            path = position.starred(path)[0]
        return Where(path, site, view, position.at(names) if names else position)

    def meet(self, site: Site, view: View, names: tuple[Any, ...]) -> Where:
        """Notes that a site was met in scopes with these names; returns where that is."""
        where = self.locate(site, view, names)
        if view.is_value:
            self.met.paths[where.path] = None
            self.met.sites[site] = self.met.sites.get(site, frozenset()) | {view.order}
        elif self.grads:
            self.met.backward.add((site, view.order))
        return where

    def chosen(self, where: Where) -> list[Pattern]:
        """The patterns that choose a site, in the order given."""
        site, path = where.site, where.path
        with naming(site, "a pattern"):
            if where.named:
                patterns = [pattern for pattern in self.patterns if where.rows([pattern])]
            else:
                patterns = [p for p in self._patterns.for_path(path) if p == path or matches(p, site)]
        self.met.used.update(patterns)
        return patterns

    def finish(self) -> None:
        """Raises NoSuchSiteError for a pattern that chose nothing."""
        for pattern in self.patterns:
            if pattern not in self.met.used:
                raise no_such_site(pattern, self.met.paths)

    def supply(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """Answers what a site asks of an edit (`plan.Supply`); this handler is not of that edit."""
        return site_p.bind(*args, site=site, view=view)

    def of_custom_call(self, outs: Sequence[Any]) -> list[Any]:
        """The outputs of a function with its own derivatives, or of its forward rule, which may not meet the sites."""
        return list(outs)

    # -- for the kinds of handlers -------------------------------------------------------------------------------------

    def record(self, arrays: list[Any], where: Where, extras: dict[Extra, Any]) -> None:
        """Remembers the arrays at a site and what goes with them, if wanted."""


def _as_token(number: Any) -> Any:
    return new_token(number) if isinstance(number, int) else number


def _is_carried(leaf: Any) -> bool:
    """Whether something a handler holds is a traced value, or the type of one that rules traced later get again."""
    return isinstance(leaf, _jax.Tracer) or _jax.is_array_type(leaf)


def is_argument(leaf: Any) -> bool:
    """Whether something a handler holds is an argument of compiled programs."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, float)) or type(leaf) is int
