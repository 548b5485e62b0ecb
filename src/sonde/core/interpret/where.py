"""Where a program is when it meets a site, for edits that depend on it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core.marks.named_loops import Row
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


@dataclasses.dataclass(frozen=True, slots=True)
class Where:
    """Where a program is when it meets a site.

    Attributes:
        path: The path of the site, with a `*` for each named loop.
        call: Which of the calls under that path, from 0.
        site: The site, with its path.
        view: How the value is seen there: its mapped axes, and how many times it was differentiated in the program.
        loops: The loops around it, outermost first.
        named: Which of them have a name that is part of the path.
        mesh_axes: The name and the size of each axis of the meshes around, outermost first.
        depth: How many captures and edits are nested, up to the one that asks.
        name: What the site is called in the scopes that are open around it.
    """

    path: str
    call: int
    site: Site
    view: View
    loops: tuple[Loop, ...] = ()
    named: tuple[int, ...] = ()
    mesh_axes: tuple[tuple[str, int], ...] = ()
    depth: int = 1
    name: str = ""

    @property
    def iteration(self) -> tuple[Any, ...]:
        """The number of the iteration of each loop, outermost first."""
        return tuple(loop.index for loop in self.loops)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the named loops."""
        return tuple(self.loops[i].length or 0 for i in self.named)

    def in_rows(self, rows: Sequence[Row]) -> Where:
        """The same, with the rows of the named loops that an edit applies to."""
        loops = list(self.loops)
        for axis, i in enumerate(self.named):
            numbers = tuple(sorted({row[axis] for row in rows}))
            loops[i] = dataclasses.replace(loops[i], rows=numbers)
        return dataclasses.replace(self, loops=tuple(loops))

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
