"""The static part of records: which arrays there are, and how values and gradients are put together from them.

It is made once per compiled program. JAX compares it when records cross a transform: two runs of one program have equal
layouts.

An array that does not vary over an axis of its site is stored without that axis. As a leaf of the pytree it has the
axis, so that `jax.tree.map` can treat all values and gradients alike. Flags and counts are stored with all axes, except
that of the `while_loop` whose iterations are counted.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde.core.interpret.items import Extra
from sonde.core.marks.axes import spread, with_leaves
from sonde.core.marks.site import Site, View
from sonde.core.records.loop_rows import CallRow, row_table


@dataclasses.dataclass(frozen=True, slots=True)
class ArraysSpec:
    """How a value or gradient is put together from its arrays."""

    view: View
    ranks: tuple[int, ...]  # of the arrays; transforms that the records cross may put axes in front of them
    reduced: Any  # the structure that a reduce function returned, or None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArraysSpec) or (self.view, self.ranks) != (other.view, other.ranks):
            return False
        if self.reduced is None or other.reduced is None:  # JAX does not compare a structure with None
            return self.reduced is other.reduced
        return self.reduced == other.reduced

    def __hash__(self) -> int:
        return hash((self.view, self.ranks, self.reduced))

    @property
    def n(self) -> int:
        """How many arrays there are."""
        return len(self.ranks)

    def spread(self, array: Any, index: int, *, gradient_of: int | None = None) -> Any:
        """An array, or its type, with all the axes of the view; but see `Axis.summed` for a gradient.

        For a value, `gradient_of` asks for the axes that its gradient would have.
        """
        if isinstance(array, jax.ShapeDtypeStruct):
            if all(axis.on_leaf(index) for axis in self.view.axes):
                return array  # thousands of sites need no trace each
            return jax.eval_shape(lambda x: self.spread(x, index, gradient_of=gradient_of), array)
        if self.view.gradient_of is not None:
            gradient_of = self.view.gradient_of[index]
        n_around = jnp.ndim(array) - self.ranks[index]
        return spread(array, self.view.axes, index, skip=n_around, gradient_of=gradient_of)

    def lacking(self, index: int) -> list[bool]:
        """For each axis, whether an array is stored without it and gets it back."""
        part = None if self.view.gradient_of is None else self.view.gradient_of[index]
        return [not axis.on_leaf(index) and part not in axis.summed for axis in self.view.axes]

    def lacks_axes(self, index: int) -> bool:
        """Whether an array is stored without some of the axes."""
        return self.reduced is None and any(self.lacking(index))

    @property
    def whole(self) -> ArraysSpec:
        """How a value or gradient is put together from arrays that have all axes."""
        if not any(map(self.lacks_axes, range(self.n))):
            return self
        lacking = [self.lacking(i) for i in range(self.n)]
        has = [
            [axis.on_leaf(i) or more for axis, more in zip(self.view.axes, leaf_lacking)]
            for i, leaf_lacking in enumerate(lacking)
        ]
        ranks = tuple(rank + sum(leaf_lacking) for rank, leaf_lacking in zip(self.ranks, lacking))
        return ArraysSpec(self.view.replace(axes=with_leaves(self.view.axes, has)), ranks, self.reduced)


@dataclasses.dataclass(frozen=True, slots=True)
class CallSpec:
    """The static part of one call: the structure of the value, and its extras and gradients."""

    site: Site
    value: ArraysSpec
    extras: tuple[Extra, ...]
    grads: tuple[tuple[int, ArraysSpec | None], ...]
    types: tuple[Any, ...]

    @property
    def size(self) -> int:
        """How many arrays it has in all."""
        return self.value.n + len(self.extras) + sum(spec.n for _, spec in self.grads if spec is not None)

    def parts(
        self, arrays: Sequence[Any]
    ) -> tuple[Sequence[Any], dict[Extra, Any], list[tuple[ArraysSpec | None, Sequence[Any]]]]:
        """All its arrays by kind: those of the value, the extras by name, those of each gradient."""
        start = self.value.n
        extras = dict(zip(self.extras, arrays[start:]))
        start += len(self.extras)
        grads = []
        for _, spec in self.grads:
            n = 0 if spec is None else spec.n
            grads.append((spec, arrays[start : start + n]))
            start += n
        return arrays[: self.value.n], extras, grads

    @property
    def whole(self) -> CallSpec:
        """The static part of the call when its arrays have all axes."""
        grads = tuple((order, spec and spec.whole) for order, spec in self.grads)
        return dataclasses.replace(self, value=self.value.whole, grads=grads)

    def lacking(self) -> list[tuple[ArraysSpec, int] | None]:
        """For each array, how to add the axes that it is stored without; None if there are none."""
        values = [(self.value, i) for i in range(self.value.n)]
        grads = [(spec, i) for _, spec in self.grads if spec is not None for i in range(spec.n)]
        places = [*values, *[None] * len(self.extras), *grads]
        return [place if place is not None and place[0].lacks_axes(place[1]) else None for place in places]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CallSpec):
            return NotImplemented
        return self is other or (self._static == other._static and _same(self.site.statics, other.site.statics))

    def __hash__(self) -> int:
        return hash(self._static)

    @property
    def _static(self) -> tuple[Any, ...]:
        # Not the site itself: the records of two runs of one program have one structure.
        return self.site.tree, self.site.arrays, self.value, self.extras, self.grads


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(x is y or (type(x) is type(y) and bool(x == y)) for x, y in zip(a, b))


class RecordLayout(tuple[tuple[str, tuple[CallSpec, ...]], ...]):
    """The static part of records: paths and the calls under each. Its hash is computed once."""

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __reduce__(self) -> Any:
        return RecordLayout, (tuple(self),)  # without the hash, which differs between processes

    @functools.cached_property
    def _lacking(self) -> list[tuple[ArraysSpec, int] | None]:
        return [place for _, calls in self for call in calls for place in call.lacking()]

    @functools.cached_property
    def _of_whole(self) -> RecordLayout | None:
        whole_calls = ((path, tuple(call.whole for call in calls)) for path, calls in self)
        return RecordLayout(whole_calls) if any(self._lacking) else None

    @property
    def whole(self) -> RecordLayout:
        """The layout of the same records with all axes on all arrays; itself if they have them."""
        return self._of_whole or self

    def filled(self, arrays: Sequence[Any]) -> Sequence[Any]:
        """Arrays for `whole`, from those for this layout."""
        return arrays if self.whole is self else _filled(arrays, self._lacking)

    @functools.cached_property
    def table(self) -> dict[str, list[CallRow]]:
        """The calls of every path; each row of a named loop has its own path."""
        return row_table(self)


def _filled(arrays: Sequence[Any], lacking: Sequence[tuple[ArraysSpec, int] | None]) -> list[Any]:
    def one(array: Any, how: tuple[ArraysSpec, int] | None) -> Any:
        if how is None or not hasattr(array, "shape"):  # JAX sometimes puts other objects in place of arrays
            return array
        return how[0].spread(array, how[1])

    return [one(array, how) for array, how in zip(arrays, lacking, strict=True)]
