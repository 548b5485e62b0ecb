"""What is known about a site before the program runs: its path, its line in the user's code, the shape of its pytree.

A `Site` is one call of `sow` as JAX traces it. A function that is compiled once and called twice has one `Site` and two
values; `View` says what an equation of the site holds: a value or a gradient, and the axes that loops, `vmap` and
meshes have put in front of it.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import types
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Literal

import jax
import numpy as np

from sonde._array_text import short_place
from sonde.core.marks.arrays import flattened
from sonde.core.marks.axes import Axis

LEAF = jax.tree.structure(0)


@dataclasses.dataclass(init=False, eq=False, repr=False, slots=True, weakref_slot=True)
class Site:
    """One marked point of a program. Compared by identity.

    Attributes:
        path: The name it was given. For predicates, and in everything that is returned, it is the whole path, with the
            scopes and the module around it.
        tag: What the layer above attached to it, such as the type of a Variable; None for a plain `sow`.
        grads: Whether its gradient was requested when the program was traced.
        in_place: Whether the program continues with the value itself and not with what the site returns, so that it
            cannot be replaced.
        has_gradient: Whether later uses of the value go through the site; not for a value of an outer transform that
            was marked in place.
        depths: Which of the nested captures see the site, the outermost being 1; None: all. A site that only some see
            was requested by their `inside=`, in code without marks: if that code runs outside the captured program, the
            site is left out, unless its function was requested by name.
        handlers: The depths of the handlers that may see the site; None: all. What the function of an edit marks is
            seen by the handlers around the edit, not by those inside it.
        supply: What an edit needs here, if this asks the edit for it and is no site of the program
            (`plan.Supply`).
    """

    path: str
    tree: Any
    arrays: tuple[bool, ...]
    statics: tuple[Any, ...]
    tag: Hashable
    grads: bool
    in_place: bool
    has_gradient: bool
    depths: frozenset[int] | None
    handlers: range | None
    supply: Any
    _file: str
    _line: int

    def __init__(self, *_: object, **__: object) -> None:
        raise TypeError("a Site is made where a value is marked: `sonde.sow(value, name)`")

    @classmethod
    def new(
        cls,
        path: str,
        *,
        tree: Any,
        arrays: tuple[bool, ...],
        statics: tuple[Any, ...],
        tag: Hashable,
        grads: bool,
        code: types.CodeType,
        line: int,
        in_place: bool = False,
        depths: frozenset[int] | None = None,
        handlers: range | None = None,
    ) -> Site:
        """For the engine: a site at a line of the user's code."""
        site = object.__new__(cls)
        site.path = path
        site.tree = tree
        site.arrays = arrays
        site.statics = statics
        site.tag = tag
        site.grads = grads
        site.in_place = in_place
        site.has_gradient = True
        site._file = code.co_filename  # not the code: a site can be copied to another process
        site.depths = depths
        site.handlers = handlers
        site.supply = None
        site._line = line
        return site

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def source(self) -> str:
        """The line of the user's code, as `file:line`."""
        return f"{self._file}:{self._line}"

    @property
    def line(self) -> str:
        """`source` as messages show it, without the folders in which this machine has the file."""
        return short_place(self.source)

    def at(self, path: str) -> Site:
        """The same site, with its whole path."""
        located = copy.copy(self)
        located.path = path
        return located

    @property
    def why_in_place(self) -> str:
        """Why it cannot be replaced, if it is in place."""
        if self.depths is None:
            why = "as after `Module.sow`, and not with what the site returns"
        elif self.tree == LEAF:
            why = "because it is known while the function is traced, or must stay the same object"
        else:
            why = "because something else may refer to this tuple, list or dict"
        return f"the program continues with the value itself, {why}"

    def rebuild(self, arrays: Sequence[Any]) -> Any:
        """The pytree that was sown, with these arrays in it; leaves that are not arrays come back as they were."""
        if self.tree is LEAF and self.arrays == (True,):
            return arrays[0]
        remaining, statics = iter(arrays), iter(self.statics)
        leaves = [next(remaining) if is_array else next(statics) for is_array in self.arrays]
        return jax.tree.unflatten(self.tree, leaves)

    def __repr__(self) -> str:
        return f"Site({self.path!r}, {self.line})"


@contextlib.contextmanager
def naming(site: Site, what: str) -> Iterator[None]:
    """Adds the site to an exception raised by the user's code."""
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by {what} at site {site.path!r} ({site.line})")
        raise


def is_array(leaf: Any) -> bool:
    """Whether a leaf of a sown pytree is recorded as an array; strings, Python numbers and the like are not."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic)) and not isinstance(leaf, (np.str_, np.bytes_))


def take_apart(value: Any) -> tuple[list[Any], Any, tuple[bool, ...], tuple[Any, ...]]:
    """The arrays in a pytree, its structure, which leaves are arrays, and the other leaves."""
    leaves, tree = flattened(value)
    arrays = tuple(map(is_array, leaves))
    statics = tuple(x for x, a in zip(leaves, arrays) if not a)
    return [x for x, a in zip(leaves, arrays) if a], tree, arrays, statics


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """A branch of a `cond` that runs beside its siblings.

    Attributes:
        choice: Which `cond`; compared by identity.
        branch: Which of its branches.
        branches: How many it has.
    """

    choice: object
    branch: int
    branches: int


Gates = frozenset[Gate]


def exclude_each_other(gates: Gates, others: Gates) -> bool:
    """Whether sites with these gates are in different branches of one choice."""
    return any(a.choice is b.choice and a.branch != b.branch for a in gates for b in others)


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """Which part of a site an equation holds: its value or a gradient, and with which axes.

    Attributes:
        order: How many times the value was differentiated (for a gradient: which differentiation made it, 0 being the
            innermost).
        gradient_of: For a gradient, the indices of the arrays that it has a part for; None for a value.
        axes: The mapped axes in front, outermost first.
        role: `"site"` is a complete site, `"supply"` asks an edit for its arrays (`Site.supply`). In a loop that is
            differentiated, a site that needs neither an edit nor a gradient is split: `"mark"` is what the program
            continues with, `"look"` is what is recorded. An additional operand of the look, the number of the
            iteration, keeps it inside the loop.
        anchored: How many of the loops around contribute to that number, counted from the innermost. Sites that are not
            split have it too.
        gates: The choices, between branches that all run, that led to the site; an additional operand says for each
            element whether the site was reached.
        whiles: The `while_loop`s around the site whose predicate is being mapped, each a separate object; there is an
            additional operand for each, which is mapped too. See `Axis.stopping`.
        rows: For a recorded value in named loops, the requested rows; None: all.
        reached: For a gradient, the arrays, by index, that depend on what is differentiated: others have no gradient,
            while one of these without a part has zeros. None if that is not known.
    """

    order: int = 0
    gradient_of: tuple[int, ...] | None = None
    axes: tuple[Axis, ...] = ()
    role: Literal["site", "supply", "mark", "look"] = "site"
    anchored: int = 0
    gates: Gates = frozenset()
    whiles: tuple[object, ...] = ()
    rows: tuple[tuple[int, ...], ...] | None = None
    reached: frozenset[int] | None = dataclasses.field(default=None, compare=False)

    @property
    def is_value(self) -> bool:
        """Whether this is the value itself and not its gradient."""
        return self.gradient_of is None

    @property
    def sums_gradients(self) -> bool:
        """Whether the gradient of some arrays is one for all examples; see `Axis.summed`."""
        return any(axis.summed for axis in self.axes)

    def gives_token(self, site: Site) -> bool:
        """Whether the last output of the site primitive is a token."""
        return self.is_value and site.grads and self.role != "look"

    def part(self, kept: Sequence[int]) -> View:
        """The view of a gradient with only some of its parts, given by position; the others are zero."""
        parts: Any = self.gradient_of
        if len(kept) == len(parts):
            return self
        axes = tuple(axis.with_parts(kept) for axis in self.axes)
        return self.replace(gradient_of=tuple(parts[i] for i in kept), axes=axes)

    def has_row(self, row: tuple[int, ...]) -> bool:
        """Whether a row of the named loops around is among those of a recorded value."""
        if self.rows is not None:
            return row in self.rows
        axes = [axis.rows for axis in self.axes if axis.rows is not None]
        return all(n in have for n, have in zip(row, axes))

    def joined(self, other: View) -> View:
        """The view of what two gradients have together, or two branches: later order, all that either reached."""
        reached = None
        if self.reached is not None and other.reached is not None:
            reached = self.reached | other.reached
        return self.replace(order=max(self.order, other.order), reached=reached)

    @property
    def recorded(self) -> View:
        """The view after the value was recorded, without what no longer matters."""
        if not self.anchored and self.role == "site" and not self.whiles:
            return self
        return self.replace(role="site", anchored=0, whiles=())

    def extra_on(self, name: str, has: Sequence[bool]) -> View:
        """The view of a value with an extra that has only some of the axes."""
        if not self.axes:
            return self
        axes = [
            dataclasses.replace(a, lacking=a.lacking - {name} if on else a.lacking | {name})
            for a, on in zip(self.axes, has)
        ]
        return self.replace(axes=tuple(axes))

    def replace(self, **changes: Any) -> View:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


PLAIN = View()
