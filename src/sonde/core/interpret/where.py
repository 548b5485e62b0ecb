"""Where a program is: `Position` is what is around the code that a handler runs on, `Where` is a site in that code."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde.core.marks.named_loops import Row, Within, rows_chosen, starred, unstarred
from sonde.core.marks.path import Pattern
from sonde.core.marks.scopes import ChoiceName, LoopName, RowsName, path_under, prefix_under
from sonde.core.marks.site import Site, View


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """A loop around a site.

    Attributes:
        index: The number of the iteration that runs; None where the handler does not count iterations.
        length: How many there are; None for a `while_loop`.
        rows: If it has a name, the iterations that an edit applies to.
        path: The path of the scope that names it, without any `*`; None if it has no name.
    """

    index: Any
    length: int | None
    rows: tuple[int, ...] | None = None
    path: str | None = None

    def slice_of(self, array: Any) -> Any:
        """This iteration's part of an array whose first axis is the loop, or the rows that the edit applies to."""
        at = self.index
        if self.rows is not None and jnp.shape(array)[0] != self.length:
            positions = np.zeros(self.length or 0, np.int32)
            positions[list(self.rows)] = np.arange(len(self.rows))
            at = jnp.asarray(positions)[at]
        return jax.lax.dynamic_index_in_dim(jnp.asarray(array), at, keepdims=False)

    def fits(self, size: int) -> bool:
        """Whether an axis of this size has a part for each iteration."""
        return size == self.length or (self.rows is not None and size == len(self.rows))


class Position(NamedTuple):
    """What is around the code that a handler runs on.

    Attributes:
        depth: How many captures and edits are nested, up to the one whose handler it is.
        n_names: How many names are open around the code. The scopes that they stand for are in the prefix, or were
            opened before the capture and are no part of paths.
        prefix: The prefix of the paths of sites; see `scopes.prefix_under`.
        loops: The loops around, outermost first: those that have a name, or all (`Handler.knows_loops`).
        loop_name: The path of a scope around that names the next loop inside.
        within: The rows of named loops for which the code runs; see `scopes.RowsName`.
        choices: The choices, between branches that all run (`site.Gate`), in whose branches the code is.
        mesh_axes: The name and the size of each axis of the meshes around that the code runs along, outermost first.
    """

    depth: int = 1
    n_names: int = 0
    prefix: str = ""
    loops: tuple[Loop, ...] = ()
    loop_name: str | None = None
    within: tuple[Within, ...] = ()
    choices: frozenset[object] = frozenset()
    mesh_axes: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> Hashable:
        """What rewriting a program depends on: not the iteration, which is an input of the rewritten program."""
        loops = tuple([(loop.path, loop.length) for loop in self.loops])
        return self.depth, self.prefix, loops, self.loop_name, self.within, self.mesh_axes

    @property
    def names(self) -> tuple[Any, ...]:
        """The names that were opened in the code and are open now."""
        return _jax.names_since(self.n_names)

    def path(self, names: tuple[Any, ...] | None = None) -> str:
        """The path of the open scopes, or of scopes with these names opened in the code; ends in a slash, if any."""
        return path_under(self.names if names is None else names, self.prefix, self.depth)

    def begun(self) -> Position:
        """The position of code that begins now: the names that it opens come after those that are open."""
        return self._replace(n_names=_jax.count_open_names())

    def entering(self, loop: Loop | None = None, *, keeps_loop: bool = False) -> Position:
        """The position inside what is about to run: in an iteration of a loop, if one is given.

        A scan takes the name that a scope around gives it; a `while_loop` leaves it to the loops inside. Returns the
        position itself if it is not a loop and no scope is open.

        Args:
            loop: The loop.
            keeps_loop: Whether a loop without a name is among `loops`, too.
        """
        names = self.names
        if not names and loop is None:
            return self
        # The innermost scope with a star names the loop; scopes that were opened inside it name what is in the loop.
        at = [i for i, name in enumerate(names) if isinstance(name, LoopName)]
        loop_name = self.path(names[: at[-1] + 1]).rstrip("/") if at else self.loop_name
        if loop is not None and loop.length is not None:
            loop, loop_name = dataclasses.replace(loop, path=loop_name), None
        is_kept = loop is not None and (loop.path is not None or keeps_loop)
        return self._replace(
            n_names=_jax.count_open_names(),
            prefix=prefix_under(names, self.prefix, self.depth),
            loops=(*self.loops, loop) if is_kept else self.loops,
            loop_name=loop_name,
            within=self.at(names).within,
            choices=self.choices.union([name.choice for name in names if isinstance(name, ChoiceName)]),
        )

    def at(self, names: tuple[Any, ...]) -> Position:
        """The position in scopes with these names, opened in the code: it may be in fewer rows of named loops."""
        if not names or RowsName not in map(type, names):
            return self
        within = list(self.within)
        for i, name in enumerate(names):
            if isinstance(name, RowsName) and name.rows is not None:
                around = self.starred(self.path(names[: i + 1]))[1]
                within.append(Within(len(around), name.rows))
        return self._replace(within=tuple(within))

    def along(self, *axes: tuple[str, int]) -> Position:
        """The position per shard, along some more axes of a mesh."""
        return self._replace(mesh_axes=(*self.mesh_axes, *axes))

    @property
    def iteration(self) -> tuple[Any, ...]:
        """The number of the iteration of each loop, outermost first."""
        return tuple([loop.index for loop in self.loops])

    def in_iteration(self, iteration: Sequence[Any]) -> Position:
        """The position in the iterations with these numbers: of the innermost loops, if there are fewer."""
        first = len(self.loops) - len(iteration)
        inner = [dataclasses.replace(loop, index=i) for loop, i in zip(self.loops[first:], iteration)]
        return self._replace(loops=(*self.loops[:first], *inner))

    def starred(self, path: str) -> tuple[str, tuple[int, ...]]:
        """A path with a `*` for each named loop that it is below, and which of the loops around those are."""
        return starred(path, [loop.path for loop in self.loops]) if self.loops else (path, ())

    def loop_path(self) -> str | None:
        """The start of the starred paths of sites in a loop that is entered now, before the loop's own `*`."""
        path = self.entering(Loop(None, 0), keeps_loop=True).loops[-1].path
        return None if path is None else self.starred(path and path + "/")[0]

    def named_at(self, path: str) -> tuple[int, ...]:
        """Which of the loops around have a name that a starred path is below."""
        return self.starred(unstarred(path))[1] if self.loops else ()

    def lengths_at(self, path: str) -> tuple[int, ...]:
        """The lengths of the named loops that a starred path is below."""
        return tuple([self.loops[i].length or 0 for i in self.named_at(path)])


class Where(NamedTuple):
    """Where a program is when it meets a site.

    Attributes:
        path: The path of the site, with a `*` for each named loop.
        marked: The site as it was marked: its own path counts from the scopes that are open around it.
        view: How the value is seen there: its mapped axes, and how many times it was differentiated in the program.
        position: What is around the code.
        call: Which of the calls under that path, from 0, for handlers that count them.
    """

    path: str
    marked: Site
    view: View
    position: Position = Position()
    call: int = 0

    @property
    def site(self) -> Site:
        """The site, with its whole path."""
        return self.marked.at(self.path)

    @property
    def name(self) -> str:
        """What the site is called in the scopes that are open around it."""
        return self.marked.path

    @property
    def depth(self) -> int:
        """How many captures and edits are nested, up to the one that asks."""
        return self.position.depth

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops around it, outermost first."""
        return self.position.loops

    @property
    def mesh_axes(self) -> tuple[tuple[str, int], ...]:
        """The name and the size of each axis of the meshes around, outermost first."""
        return self.position.mesh_axes

    @property
    def iteration(self) -> tuple[Any, ...]:
        """The number of the iteration of each loop, outermost first."""
        return self.position.iteration

    @property
    def named(self) -> tuple[int, ...]:
        """Which of the loops have a name that is part of the path."""
        return self.position.named_at(self.path)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the named loops."""
        return self.position.lengths_at(self.path)

    def rows(self, patterns: Sequence[Pattern]) -> list[Row]:
        """The rows of the named loops that patterns choose, of those for which the code runs."""
        rows = rows_chosen(patterns, self.marked, self.path, self.lengths)
        return [row for row in rows if all(within.has(row) for within in self.position.within)]

    def around(self, loops: Sequence[Loop] | None = None, mesh_axes: Sequence[tuple[str, int]] | None = None) -> Where:
        """This place with other loops or other axes of meshes around."""
        position = self.position
        if loops is not None:
            position = position._replace(loops=tuple(loops))
        if mesh_axes is not None:
            position = position._replace(mesh_axes=tuple(mesh_axes))
        return self._replace(position=position)

    def in_rows(self, rows: Sequence[Row]) -> Where:
        """This place with the rows of the named loops that an edit applies to."""
        loops = list(self.loops)
        for axis, i in enumerate(self.named):
            numbers = tuple(sorted({row[axis] for row in rows}))
            loops[i] = dataclasses.replace(loops[i], rows=numbers)
        return self.around(loops)

    def without_names(self) -> Where:
        """This place without the named loops around it."""
        named = self.named
        return self.around([dataclasses.replace(x, path=None) for i, x in enumerate(self.loops) if i not in named])

    def is_in(self, rows: Sequence[Row]) -> Any:
        """Whether the program is in one of some rows of the named loops: None if it is, whatever row it is in."""
        if len(rows) >= math.prod(self.lengths):
            return None
        chosen = np.zeros(self.lengths, bool)
        chosen[tuple(np.asarray(rows, int).reshape(-1, len(self.named)).T)] = True
        return jnp.asarray(chosen)[tuple(self.loops[i].index for i in self.named)]

    @property
    def is_differentiated(self) -> bool:
        """Whether the program differentiates the value itself, inside the edit.

        What is supplied here is a constant for that differentiation.
        """
        return self.view.order > 0

    def mapped(self, index: int) -> int:
        """How many mapped axes an array of the value, given by its position, has in front."""
        return sum(axis.on_leaf(index) for axis in self.view.axes)

    def slice_of(self, array: Any, index: int, iteration: Sequence[Any] | None = None) -> Any:
        """The part of a recorded array that belongs here.

        Args:
            array: Loops and mapped axes in front.
            index: The position of the array in the value.
            iteration: Along which indices of the axes of the loops; those of the iteration that runs, if None.
        """
        for step in self.iteration if iteration is None else iteration:
            array = jax.lax.dynamic_index_in_dim(jnp.asarray(array), step, keepdims=False)
        # A record has all mapped axes; the value itself lacks those that it does not vary over.
        for position, axis in reversed(list(enumerate(self.view.axes))):
            if not axis.on_leaf(index):
                array = jax.lax.index_in_dim(array, 0, position, keepdims=False)
        return array
