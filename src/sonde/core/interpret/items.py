"""What a handler recorded at one site: arrays on their way out of loops, branches and jitted calls.

Inside a rewritten jaxpr the arrays of an item are extra outputs. What remains is its spec, the same item without
arrays, from which the item is rebuilt outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from sonde import _jax
from sonde.core.marks.axes import Axis, extra_has, leaf_has
from sonde.core.marks.site import Site, View

Extra = str  # the extras of an item: `"token"`, `"taken"`, `"count"`


@dataclasses.dataclass(slots=True)
class Item:
    """One recording at a site: a value or a gradient.

    Attributes:
        sites: The site; several where branches of a `cond` have the same path and share a slot.
        path: The path at which the site was met. Not used for gradients, which have the path of their value.
        view: Value or gradient, and the axes in front, loops included.
        leaves: Its arrays; in a spec, None for each.
        extras: Additional arrays, by name; in a spec, None for each.
        tree: The structure of the leaves if a `reduce` function made them; None if they are the site's arrays.
        types: The types of the site's arrays, before a `reduce` function.
        loops: The loops around, outermost first, each a separate object. A `while_loop` is one, though it leaves no
            axis.
    """

    sites: tuple[Site, ...]
    path: str
    view: View
    leaves: list[Any]
    extras: dict[Extra, Any]
    tree: Any
    types: tuple[Any, ...]
    loops: tuple[object, ...] = dataclasses.field(default=(), compare=False)

    @property
    def site(self) -> Site:
        """The first of the sites."""
        return self.sites[0]

    @property
    def arrays(self) -> list[Any]:
        """All arrays, in the order in which `build` takes them."""
        return [*self.leaves, *self.extras.values()]

    @property
    def names(self) -> list[Extra | None]:
        """For each of the arrays its name; None for a leaf."""
        return [*[None] * len(self.leaves), *self.extras]

    @property
    def has(self) -> list[list[bool]]:
        """For each of the arrays, which axes it has; what a `reduce` function returned has all of them."""
        axes, reduced = self.view.axes, self.tree is not None
        of_leaves = [leaf_has(axes, i, reduced=reduced) for i in range(len(self.leaves))]
        return [*of_leaves, *[extra_has(axes, name) for name in self.extras]]

    @property
    def size(self) -> int:
        """How many arrays it has in all."""
        return len(self.leaves) + len(self.extras)

    @property
    def spec(self) -> Item:
        """The item without arrays."""
        return self.build([None] * self.size)

    @property
    def specs(self) -> list[Item]:
        """The spec, as a list of one, as for a bundle."""
        return [self.spec]

    def build(self, arrays: Sequence[Any]) -> Item:
        """The item with other arrays."""
        n = len(self.leaves)
        leaves, extras = list(arrays[:n]), dict(zip(self.extras, arrays[n:]))
        return Item(self.sites, self.path, self.view, leaves, extras, self.tree, self.types, self.loops)

    def map_arrays(self, fn: Callable) -> Item:
        """A copy with `fn` applied to every array."""
        return self.build([fn(x) for x in self.arrays])

    def inside(self, axis: Axis) -> Item:
        """This item as it leaves a loop that stacks its iterations along an axis."""
        return dataclasses.replace(
            self, view=self.view.replace(axes=(axis, *self.view.axes)), loops=(axis.loop, *self.loops)
        )

    def inside_loop(self, loop: object) -> Item:
        """This item as it leaves a `while_loop`, which adds no axis."""
        return dataclasses.replace(self, loops=(loop, *self.loops))


@dataclasses.dataclass(slots=True)
class Bundle:
    """The items that came out of one jitted call, kept unsplit until one of them is needed.

    Attributes:
        specs: The items without arrays; the same list for every call of the same compiled function.
        arrays: All arrays in one flat list.
        cache: Belongs to the compiled function; for results that depend on the specs alone.
    """

    specs: list[Item]
    arrays: Sequence[Any]
    cache: dict[Any, Any]


def expand(items: Iterable[Item | Bundle]) -> list[Item]:
    """All items, one by one."""
    result = []
    for item in items:
        result += build_items(item.specs, item.arrays) if isinstance(item, Bundle) else [item]
    return result


def build_items(specs: Iterable[Item], arrays: Sequence[Any]) -> list[Item]:
    """The items that these specs describe, from their arrays in one flat list."""
    items, start = [], 0
    for spec in specs:
        items.append(spec.build(arrays[start : start + spec.size]))
        start += spec.size
    return items


def flat_arrays(items: Iterable[Item | Bundle]) -> list[Any]:
    """The arrays of all items in one flat list."""
    return [x for item in items for x in item.arrays]


def flat_specs(items: Iterable[Item | Bundle]) -> list[Item]:
    """The specs of all items in one flat list."""
    return [spec for item in items for spec in item.specs]


def in_runs_of_maps(items: Iterable[Item | Bundle], runs: tuple[object, ...]) -> list[Item]:
    """The items of code that ran inside these calls of `vmap`, noted in their axes."""
    result = []
    for item in expand(items):
        axes = [dataclasses.replace(a, mapped_by=_jax.in_these_runs(a.mapped_by, runs)) for a in item.view.axes]
        result.append(dataclasses.replace(item, view=item.view.replace(axes=tuple(axes))) if axes else item)
    return result


def in_new_loops(specs: Iterable[Item]) -> list[Item]:
    """The specs of another run of the same program: its loops are replaced by new ones."""
    fresh: dict[int, Any] = {}

    def renewed(loop: object) -> object:
        return fresh.setdefault(id(loop), object())

    result = []
    for spec in specs:
        if spec.loops:
            axes = tuple(dataclasses.replace(a, loop=renewed(a.loop)) if a.is_loop else a for a in spec.view.axes)
            loops = tuple(map(renewed, spec.loops))
            spec = dataclasses.replace(spec, view=spec.view.replace(axes=axes), loops=loops)
        result.append(spec)
    return result


def in_new_choices(specs: Iterable[Item], choices: frozenset[object]) -> list[Item]:
    """The specs of another run of the same program: these choices are replaced by new ones."""
    fresh = {choice: object() for choice in choices}
    result = []
    for spec in specs:
        gates = [dataclasses.replace(g, choice=fresh.get(g.choice, g.choice)) for g in spec.view.gates]
        result.append(dataclasses.replace(spec, view=spec.view.replace(gates=frozenset(gates))) if gates else spec)
    return result


def firsts(keys: Iterable[Hashable]) -> tuple[list[int], list[int]]:
    """The positions at which keys appear for the first time, and for each key its number among those."""
    first: dict[Hashable, int] = {}
    positions, numbers = [], []
    for position, key in enumerate(keys):
        if key not in first:
            first[key] = len(first)
            positions.append(position)
        numbers.append(first[key])
    return positions, numbers
