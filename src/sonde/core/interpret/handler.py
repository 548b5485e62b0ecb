"""What happens at a site. One set of rules carries sites through JAX's transforms; handlers decide what is done there.

A handler looks at values (`record`) and answers what edits ask (`supply`); new values are put in place by the program
itself (`core/edits`), so that JAX differentiates them. A handler never sees loops, branches or jitted calls: the rules
run a child of it inside them, and what the child recorded comes out as extra outputs. Arrays that a handler needs
inside, such as the new values of an edit, are closed over; the rules turn them into extra inputs.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.interpret.call_tokens import new_token
from sonde.core.interpret.items import Bundle, Extra, Item, flat_arrays
from sonde.core.interpret.seen_sites import CallCounts, SeenSites
from sonde.core.interpret.where import Loop, Where
from sonde.core.marks.named_loops import Row, Within, rows_chosen, starred, unstarred
from sonde.core.marks.operands import operands_of
from sonde.core.marks.path import ByPath, Pattern, checked_name, matches, no_such_site
from sonde.core.marks.primitive import bind_site, site_p
from sonde.core.marks.scopes import ChoiceName, LoopName, RowsName, path_under, prefix_under
from sonde.core.marks.site import Site, View, naming
from sonde.core.session.state import CaptureState


class Handler:
    """The part that all handlers share: names seen, tokens, passing sites on to an enclosing handler.

    Attributes:
        key: The cache key of rewritten jaxprs; None if they must not be cached.
        patterns: Globs or predicates that must match something.
        depth: How many handlers are nested around, itself included.
        prefix: The prefix of the paths of sites, if it is a child; see `scopes.prefix_under`.
        items: What was recorded, in program order.
        met: What is known about the sites met so far; what a child met is added when it has finished.
        counts: How many times each site ran, for handlers that need it.
        loops: The loops around the handler, outermost first: those that have a name, and if it `knows_loops` all.
        loop_name: The path of a scope around the handler that names the next loop inside.
        within: The rows of named loops for which the code runs; see `scopes.RowsName`.
        choices: The choices, between branches that all run (`site.Gate`), in whose branches the program is.
        runs_of_choices: How many times the programs with each choice ran; a handler and its children share it.
        mesh_axes: The name and the size of each axis of the meshes around it that the code runs along, outermost first.
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
    # What the captures around want; None if there are none.
    outside: CaptureState | None = None
    # Whether jitted functions with sites may donate their arguments. Do not donate if the results are discarded.
    donates = True
    # How many of the last iterations of a while loop are kept.
    last = 1

    def __init__(self, key: Hashable, patterns: tuple[Pattern, ...], *, depth: int = 1) -> None:
        self.key = key
        self.patterns = patterns
        self._patterns = ByPath(patterns)
        self.depth = depth
        self.prefix = ""
        self.items: list[Item | Bundle] = []
        self.met = SeenSites()
        self.counts = CallCounts()
        self.runs_of_choices: dict[object, int] = {}
        self.choices: frozenset[object] = frozenset()
        self.loops: tuple[Loop, ...] = ()
        self.loop_name: str | None = None
        self.within: tuple[Within, ...] = ()
        self.mesh_axes: tuple[tuple[str, int], ...] = ()
        self.values: Any = ()
        self._within_here: tuple[Within, ...] = ()  # of the current site
        # Paths count from here: scopes that were opened before the capture are no part of them.
        self._names_before = _jax.count_open_names()
        # The first token of the sites here. Several sites may have it, because tokens only tell the calls of one site
        # apart; what is rewritten inside gets a span of further ones, at an offset from it.
        self._base: Any = 1
        self._next_offset = 1
        self._sites_here: set[Site] = set()
        self.passes_on = depth > 1  # whether an enclosing handler wants to see the sites too

    def __copy__(self) -> Self:
        # Every jitted call makes one: `copy` alone would take four times as long.
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    # -- for the rules -------------------------------------------------------------------------------------------------

    def child(self, base: Any = 1, steps: Sequence[Any] = (), prefix: str | None = None) -> Self:
        """The handler that runs inside a loop body, branch or jitted function.

        Args:
            base: The token that the sites inside start from.
            prefix: The prefix of the paths inside (see `scopes.prefix_under`), if `entering` has made this handler. If
                None, the child runs where the program is now.
            steps: If inside a loop, what `loop_steps` gives this iteration.
        """
        if prefix is None:
            return self.entering().child(base, steps, self.prefix_here())
        inner = copy.copy(self)
        if steps and self.counts_iterations:
            *around, entered = self.loops
            inner.loops = (*around, dataclasses.replace(entered, index=steps[0]))
        inner.items, inner._sites_here, inner.met = [], set(), self.met.child()
        inner.prefix = prefix
        inner._names_before = _jax.count_open_names()
        inner._base, inner._next_offset = base, 1
        return inner

    def entering(self, loop: Loop | None = None) -> Self:
        """The handler whose child is about to run inside something, in an iteration of a loop if one is given.

        A scan takes the name that a scope around gives it; a `while_loop` leaves it to the loops inside. Returns the
        handler itself if it is not a loop and no scope is open.
        """
        names = _jax.names_since(self._names_before)
        if not names and loop is None:
            return self
        at = [i for i, name in enumerate(names) if isinstance(name, LoopName)]
        name = self.here(names[: at[-1] + 1]).rstrip("/") if at else self.loop_name
        inner = copy.copy(self)
        if loop is None or loop.length is None:
            inner.loop_name = name
        else:
            inner.loop_name, loop = None, dataclasses.replace(loop, path=name)
        if loop is not None and (loop.path is not None or self.knows_loops):
            inner.loops = (*self.loops, loop)
        inner.within = self._within(names)
        if ChoiceName in map(type, names):
            inner.choices = self.choices.union(name.choice for name in names if isinstance(name, ChoiceName))
        return inner

    def _within(self, names: tuple[Any, ...]) -> tuple[Within, ...]:
        """The rows for which code runs in scopes with these names, opened where the handler runs."""
        if not names or RowsName not in map(type, names):
            return self.within
        numbered = list(self.within)
        for i, name in enumerate(names):
            if isinstance(name, RowsName) and name.rows is not None:
                around = self.starred(self.here(names[: i + 1]))[1]
                numbered.append(Within(len(around), name.rows))
        return tuple(numbered)

    def loop_path(self) -> str | None:
        """The start of the starred paths of sites in a loop that is entered now, before the loop's own `*`."""
        inside = self.entering(Loop(None, 0)).loops[len(self.loops) :]
        path = inside[0].path if inside else None
        return None if path is None else self.starred(path and path + "/")[0]

    def starred(self, path: str) -> tuple[str, tuple[int, ...]]:
        """A path with a `*` for each named loop that it is below, and which of the loops around those are."""
        return starred(path, [loop.path for loop in self.loops]) if self.loops else (path, ())

    @property
    def position(self) -> Hashable:
        """What rewriting a program depends on of where the handler is; beside the prefix of its paths."""
        loops = tuple([(loop.path, loop.length) for loop in self.loops])
        return loops, self.loop_name, self.within, self.mesh_axes, self.passes_on

    def on_mesh(self, axes: Sequence[tuple[str, int]]) -> Self:
        """The handler that runs per shard along some more axes of a mesh."""
        inner = copy.copy(self)
        inner.mesh_axes = (*self.mesh_axes, *axes)
        return inner

    def quietly(self) -> Self:
        """A handler that does the same, but does not pass sites on."""
        inner = self.child()
        inner.passes_on = False
        return inner

    def carried(self) -> list[Any]:
        """The traced values that the handler holds: functions that are traced later must get them again."""
        return [x for x in jax.tree.leaves(self._held) if _is_carried(x)]

    def carrying(self, carried: Sequence[Any]) -> Self:
        """A handler with these in place of what `carried` returned."""
        inner, remaining = copy.copy(self), iter(carried)
        inner._base, inner.values, indices = jax.tree.map(
            lambda x: next(remaining) if _is_carried(x) else x, self._held
        )
        inner.loops = tuple([dataclasses.replace(loop, index=index) for loop, index in zip(self.loops, indices)])
        return inner

    @property
    def _held(self) -> tuple[Any, Any, list[Any]]:
        return self._base, self.values, [loop.index for loop in self.loops]

    def arrays(self) -> list[Any]:
        """The arrays that rewritten programs take as inputs, so that they can be kept for other numbers."""
        return [jnp.asarray(x) for x in jax.tree.leaves(self.values) if is_argument(x)]

    def with_arrays(self, arrays: Sequence[Any]) -> Self:
        """A handler with these in place of those that `arrays` returned."""
        inner, remaining = copy.copy(self), iter(arrays)
        inner.values = jax.tree.map(lambda x: next(remaining) if is_argument(x) else x, self.values)
        return inner

    def here(self, names: tuple[Any, ...] | None = None) -> str:
        """The path of the scopes that are open, or of scopes with these names, opened where the handler runs."""
        names = _jax.names_since(self._names_before) if names is None else names
        return path_under(names, self.prefix, self.depth)

    def prefix_here(self) -> str:
        """The same as a prefix, for what runs inside."""
        return prefix_under(_jax.names_since(self._names_before), self.prefix, self.depth)

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
        n, sees = len(operands.arrays), self.sees(site)
        path = self.meet(site, view, _jax.names_since(self._names_before)) if sees else ""
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
        if sees and view.role != "mark":  # the other half of the site, a look, is what is recorded
            self.record(operands.arrays, site, path, view, operands.extras)
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
        if site in self._sites_here:  # a jaxpr that was inlined twice
            return self.allot(1)
        self._sites_here.add(site)
        return _as_token(self._base)

    def meet(self, site: Site, view: View, names: tuple[Any, ...]) -> str:
        """Notes that a site was met in scopes with these names; returns the path of the site."""
        path = self.here(names) + site.path
        if "*" in path:
            checked_name(path)  # the names of modules were not checked: they may be anything
        path, _ = self.starred(path)
        self._within_here = self._within(names)
        if view.is_value:
            self.met.paths[path] = None
            self.met.sites[site] = self.met.sites.get(site, frozenset()) | {view.order}
        elif self.grads:
            self.met.backward.add((site, view.order))
        return path

    def chosen(self, site: Site, path: str) -> list[Pattern]:
        """The patterns that choose a site, in the order given."""
        whole = site.at(path)
        lengths = self.lengths_at(path)
        with naming(whole, "a pattern"):
            if lengths:
                patterns = [pattern for pattern in self.patterns if self.rows_at(site, path, [pattern])]
            else:
                patterns = [p for p in self._patterns.for_path(path) if p == path or matches(p, whole)]
        self.met.used.update(patterns)
        return patterns

    def rows_at(self, site: Site, path: str, patterns: Sequence[Pattern]) -> list[Row]:
        """The rows, of the named loops around the current site, that the patterns choose."""
        rows = rows_chosen(patterns, site, path, self.lengths_at(path))
        return [row for row in rows if all(within.has(row) for within in self._within_here)]

    def named_at(self, path: str) -> tuple[int, ...]:
        """Which of the loops around have a name that a starred path is below."""
        return self.starred(unstarred(path))[1] if self.loops else ()

    def lengths_at(self, path: str) -> tuple[int, ...]:
        """The lengths of the named loops that a starred path is below."""
        return tuple([self.loops[i].length or 0 for i in self.named_at(path)])

    def where(self, site: Site, path: str, view: View, call: int) -> Where:
        """Where the program is at a site."""
        named = self.named_at(path)
        return Where(path, call, site.at(path), view, self.loops, named, self.mesh_axes, self.depth, site.path)

    def finish(self) -> None:
        """Raises NoSuchSiteError for a pattern that chose nothing."""
        for pattern in self.patterns:
            if pattern not in self.met.used:
                raise no_such_site(pattern, self.met.paths)

    def supply(self, args: Sequence[Any], site: Site, view: View) -> list[Any]:
        """Answers what a site asks of an edit (`plan.Supply`); this handler is not of that edit."""
        return site_p.bind(*args, site=site, view=view)

    # -- for the kinds of handlers -------------------------------------------------------------------------------------

    def record(self, arrays: list[Any], site: Site, path: str, view: View, extras: dict[Extra, Any]) -> None:
        """Remembers the arrays and what goes with them, if wanted."""


def _as_token(number: Any) -> Any:
    return new_token(number) if isinstance(number, int) else number


def _is_carried(leaf: Any) -> bool:
    """Whether something a handler holds is a traced value, or the type of one that rules traced later get again."""
    return isinstance(leaf, _jax.Tracer) or _jax.is_array_type(leaf)


def is_argument(leaf: Any) -> bool:
    """Whether something a handler holds is an argument of compiled programs."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, float)) or type(leaf) is int
