"""What a handler saw at one site: arrays on their way out of loops, branches and jitted calls.

Inside a rewritten jaxpr the arrays of an item are extra outputs. An `ItemSpec` is the static rest, from which the item
is put together again outside.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from sonde.core.site import Axis, Site, View

Extra = Literal["token", "taken", "count"]


@dataclasses.dataclass(frozen=True, slots=True)
class ItemSpec:
    """The static part of an item.

    Attributes:
        sites: The site; several where branches of a `cond` have the same path and one place in the results.
        view: Value or gradient, and the axes in front, loops included.
        n_leaves: How many arrays it has.
        extras: Names of the arrays that come after the leaves.
        tree: The structure of the leaves if a `reduce` function made them; None if they are the site's arrays.
        types: The types of the site's arrays, before a `reduce` function.
    """

    sites: tuple[Site, ...]
    view: View
    n_leaves: int
    extras: tuple[Extra, ...]
    tree: Any
    types: tuple[Any, ...]

    @property
    def site(self) -> Site:
        """The first of the sites."""
        return self.sites[0]

    @property
    def size(self) -> int:
        """How many arrays an item of this kind has in all."""
        return self.n_leaves + len(self.extras)

    def inside(self, axis: Axis) -> ItemSpec:
        """The same, seen from outside a loop."""
        return dataclasses.replace(self, view=self.view.replace(axes=(axis, *self.view.axes)))

    def build(self, arrays: Sequence[Any]) -> Item:
        """The item with these arrays."""
        extras = dict(zip(self.extras, arrays[self.n_leaves :]))
        return Item(self.sites, self.view, list(arrays[: self.n_leaves]), extras, self.tree, self.types)


@dataclasses.dataclass(slots=True)
class Item:
    """What was seen at a site once: a value or a gradient. See `ItemSpec` for the fields."""

    sites: tuple[Site, ...]
    view: View
    leaves: list[Any]
    extras: dict[Extra, Any]
    tree: Any
    types: tuple[Any, ...]

    @property
    def site(self) -> Site:
        """The first of the sites."""
        return self.sites[0]

    @property
    def spec(self) -> ItemSpec:
        """The static part."""
        return ItemSpec(self.sites, self.view, len(self.leaves), tuple(self.extras), self.tree, self.types)

    @property
    def arrays(self) -> list[Any]:
        """All arrays, in the order in which `ItemSpec.build` takes them."""
        return [*self.leaves, *self.extras.values()]

    def map_arrays(self, fn: Any) -> Item:
        """A copy with `fn` applied to every array."""
        return self.spec.build([fn(x) for x in self.arrays])


def build_items(specs: Iterable[ItemSpec], arrays: Sequence[Any]) -> list[Item]:
    """The items that these specs describe, from their arrays in one flat list."""
    items, start = [], 0
    for spec in specs:
        items.append(spec.build(arrays[start : start + spec.size]))
        start += spec.size
    return items


def flat_arrays(items: Iterable[Item]) -> list[Any]:
    """The arrays of all items in one flat list."""
    return [x for item in items for x in item.arrays]
