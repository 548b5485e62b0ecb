"""The axes in front of a value, and functions for arrays that have some of them.

Loops, `vmap` and meshes put axes in front of the value at a site. An array of the site, or an extra (its token, whether
its branch was taken, how many times a loop ran), has only the axes that it varies over; `Axis` says which. Where arrays
with different axes meet, `over_axes` maps a function over each axis that at least one of them has, so that no shape is
ever compared with another, and shardings are left to JAX.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

from sonde import _jax

AxisKind = Literal["scan", "while", "vmap", "mesh"]


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """One axis in front of the values of a record.

    Attributes:
        kind: What made it: `"scan"` (also `map` and `fori_loop` with known bounds), `"while"`, `"vmap"` or `"mesh"`.
        size: Its length, or None if only the array tells (a mesh axis).
        name: The name of a mesh axis, or of the axis of a `vmap` that was given one.
        rows: The numbers of the iterations along it, if the loop has a name (see `sonde.scope`).
    """

    kind: AxisKind
    size: int | None = None
    name: str | None = None
    # Which leaves of the site have the axis: a leaf that does not vary over it is stored without it. None: all have it.
    leaves: tuple[bool, ...] | None = None
    rows: Sequence[int] | None = None
    # Which loop: distinguishes a gradient computed inside a loop from the gradient of that loop. Not part of equality,
    # so that the records of two runs have the same structure.
    loop: object = dataclasses.field(default=None, compare=False)
    reverse: bool = dataclasses.field(default=False, compare=False)
    # The extras (see `Item.extras`) that lack this axis.
    lacking: frozenset[str] = dataclasses.field(default=frozenset(), compare=False)
    # Which `vmap` made it; None if that is not known.
    mapped_by: _jax.MappedBy | None = dataclasses.field(default=None, compare=False)
    # The `while_loop`s around the site, each a separate object, that may stop at a different iteration for each
    # element.
    stopping: frozenset[object] = dataclasses.field(default=frozenset(), compare=False)
    # The arrays of the site, by index, that the examples share and the program continues with: the gradient of such an
    # array is one for all examples, their sum, and has no part for each of them.
    summed: frozenset[int] = frozenset()

    @property
    def is_loop(self) -> bool:
        """Whether a loop made it; loop axes stand before mapped ones."""
        return self.kind in ("scan", "while")

    def on_leaf(self, index: int) -> bool:
        """Whether the leaf has this axis."""
        return self.leaves is None or self.leaves[index]

    def on_extra(self, name: str) -> bool:
        """Whether an extra has this axis."""
        return name not in self.lacking

    def with_parts(self, kept: Sequence[int]) -> Axis:
        """The axis of some of the arrays, given by position."""
        return self if self.leaves is None else dataclasses.replace(self, leaves=tuple(self.leaves[i] for i in kept))

    def looks_like(self, other: Axis) -> bool:
        """Whether the other axis may be the same one, seen at another site."""
        if self.mapped_by is not None and other.mapped_by is not None and self.mapped_by != other.mapped_by:
            return False
        return (self.kind, self.size, self.name) == (other.kind, other.size, other.name)

    def is_around(self, other: Axis) -> bool:
        """Whether the other axis is known to be inside this one: one `vmap` in another."""
        return self.mapped_by is not None and other.mapped_by is not None and self.mapped_by.is_around(other.mapped_by)

    def inherited(self) -> Axis:
        """The axis for a gradient whose value has it. The flags of value and gradient are different ones."""
        mapped_by = self.mapped_by and self.mapped_by._replace(runs=None, inherited=True)
        return dataclasses.replace(self, mapped_by=mapped_by, lacking=self.lacking | {"taken"})

    def of_value(self, axes: Sequence[Axis]) -> Axis:
        """The axis of a gradient, replaced by the corresponding axis of its value, if there is one."""
        if self.mapped_by is None or not self.mapped_by.inherited:
            return self
        maps, path = [a.mapped_by for a in axes if a.mapped_by is not None], self.mapped_by[:2]
        mapped_by = next((value_map for value_map in maps if value_map[:2] == path), self.mapped_by)
        return dataclasses.replace(self, mapped_by=mapped_by)

    def __repr__(self) -> str:
        return f"{self.kind}:{self.name or self.size}"


Has = Sequence[bool]  # for each of some axes, whether an array has it


def leaf_has(axes: Sequence[Axis], index: int, *, reduced: bool = False) -> list[bool]:
    """Which axes a leaf has; what a `reduce` function returned has all of them."""
    return [reduced or axis.on_leaf(index) for axis in axes]


def extra_has(axes: Sequence[Axis], name: str) -> list[bool]:
    """Which axes an extra has."""
    return [axis.on_extra(name) for axis in axes]


def in_row(on: Has, has: Has) -> list[bool]:
    """Which axes of a longer list an array has, if its own list is the entries where `on` is true."""
    entries = iter(has)
    return [is_on and next(entries) for is_on in on]


def either(*has: Has) -> list[bool]:
    """The axes of a result that is computed from several arrays."""
    return [any(each) for each in zip(*has)]


def with_leaves(axes: Sequence[Axis], has: Sequence[Has]) -> tuple[Axis, ...]:
    """The axes, with the leaves that have each."""
    columns = list(zip(*has)) if has else [()] * len(axes)
    return tuple(dataclasses.replace(a, leaves=None if all(c) else tuple(c)) for a, c in zip(axes, columns))


def over_axes(fn: Callable, has: Sequence[Has]) -> Callable[..., Any]:
    """A function of arrays with axes in front, from a function of arrays without.

    Args:
        fn: What to do with one element.
        has: For every argument, which of the axes it has, outermost first.

    Returns:
        A function whose results have the axes that `either` argument has.
    """
    for args_with_axis in reversed(list(zip(*has))):
        if any(args_with_axis):
            fn = functools.partial(_over_axis, fn, args_with_axis)
    return fn


def _over_axis(fn: Callable, has: Has, *args: Any) -> Any:
    mapped = [x for x, on in zip(args, has) if on]
    if any(map(_jax.is_on_explicit_mesh, mapped)):  # where a select does not broadcast a case that is not mapped
        like = next((x for x in mapped if _jax.typeof(x).sharding.spec[0] is not None), mapped[0])
        fit = [_jax.first_axis_like, _jax.repeated_like]
        return jax.vmap(fn)(*[fit[not on](x, like) for x, on in zip(args, has)])
    return jax.vmap(fn, in_axes=tuple(0 if on else None for on in has))(*args)


def spread(
    array: _jax.AnyArray, axes: Sequence[Axis], index: int, *, skip: int = 0, gradient_of: int | None = None
) -> Any:
    """Gives a leaf the axes that it was stored without; the first `skip` axes are left alone.

    The gradient of an array of the site, given by `gradient_of`, keeps lacking those that it is summed over.
    """
    position = skip
    for axis in axes:
        if axis.on_leaf(index):
            position += 1
        elif gradient_of not in axis.summed:
            array = repeated_along(array, axis.size, position)
            position += 1
    return array


def repeated_along(array: _jax.AnyArray, size: Any, position: int) -> Any:
    """An array with one more axis, along which it does not vary."""
    expanded = jnp.expand_dims(array, position)
    return jnp.broadcast_to(expanded, (*expanded.shape[:position], size, *expanded.shape[position + 1 :]))


def room_for_axes(array: _jax.AnyArray, has: Has) -> Any:
    """An array with an axis of length one for each that it lacks, for broadcasting."""
    return lax.expand_dims(array, [i for i, has_axis in enumerate(has) if not has_axis])


def zero_unless(
    chosen: Any, chosen_has: Has, leaves: Sequence[Any], has: Sequence[Has]
) -> tuple[list[Any], list[list[bool]]]:
    """The leaves where something is true, and zeros elsewhere; and which axes they then have."""

    def one(is_chosen: Any, leaf: Any) -> Any:
        return jnp.where(is_chosen, leaf, jnp.zeros_like(leaf))

    selected = [over_axes(one, [chosen_has, has_axes])(chosen, leaf) for leaf, has_axes in zip(leaves, has)]
    return selected, [either(chosen_has, has_axes) for has_axes in has]


def per_example(fn: Callable, axes: Sequence[Axis], n: int) -> Callable[..., Any]:
    """`fn`, a function of a site's `n` arrays as they were sown, for arrays with axes; its results have all axes."""
    for axis in reversed(axes):
        in_axes = tuple(0 if axis.on_leaf(i) else None for i in range(n))
        if any(a is not None for a in in_axes):
            fn = jax.vmap(fn, in_axes=in_axes, axis_size=axis.size)
        else:
            fn = functools.partial(_repeated, fn, axis.size)
    return fn


def _repeated(fn: Callable, size: Any, *arrays: Any) -> Any:
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *jnp.shape(x))), fn(*arrays))


def common_axes(a: Sequence[Axis], b: Sequence[Axis]) -> tuple[list[Axis], list[bool], list[bool]] | None:
    """One list of axes that contains both lists in order, and which of them each list has.

    None if there are several such lists, or none.
    """
    if len(a) < len(b):
        swapped = common_axes(b, a)
        return swapped and (swapped[0], swapped[2], swapped[1])
    ways = list(_ways_to_find(a, b))
    if not ways:
        return _joined(a, b)
    if len(ways) > 1:  # two axes look alike: a guess could pair a gradient with the wrong one
        return None
    return list(a), [True] * len(a), [i in ways[0] for i in range(len(a))]


def _joined(a: Sequence[Axis], b: Sequence[Axis]) -> tuple[list[Axis], list[bool], list[bool]] | None:
    """The common axes of two lists that both have axes the other lacks; None if their order is unknown."""
    row: list[tuple[Axis, bool, bool]] = []
    # Merged like sorted lists. What is known of the order is which axes both have, and which `vmap` is inside which.
    while a or b:
        first, second = a[0] if a else None, b[0] if b else None
        if first is not None and second is not None and first.looks_like(second):
            row.append((first, True, True))
            a, b = a[1:], b[1:]
        elif first is not None and _comes_first(a, b):
            row.append((first, True, False))
            a = a[1:]
        elif second is not None and _comes_first(b, a):
            row.append((second, False, True))
            b = b[1:]
        else:
            return None
    return [axis for axis, _, _ in row], [on for _, on, _ in row], [on for _, _, on in row]


def _comes_first(row: Sequence[Axis], other: Sequence[Axis]) -> bool:
    """Whether the first axis of one list, which the other lacks, comes before the first axis of the other."""
    axis, *later_axes = row
    if any(map(axis.looks_like, other)):
        return False
    return not other or axis.is_around(other[0]) or any(map(other[0].looks_like, later_axes))


def _ways_to_find(row: Sequence[Axis], inside: Sequence[Axis], start: int = 0) -> Any:
    """The ways to find one list of axes in another, as positions."""
    if not inside:
        yield ()
        return
    for i in range(start, len(row)):
        if row[i].looks_like(inside[0]):
            yield from ((i, *later_positions) for later_positions in _ways_to_find(row, inside[1:], i + 1))
