"""The arrays that an edit puts at a site: from a function, a value, or a record of an earlier run."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde._array_text import describe
from sonde.core.marks.named_loops import Row
from sonde.core.marks.site import Site, View
from sonde.core.records.record import Record
from sonde.errors import EditError


@dataclasses.dataclass(frozen=True, slots=True)
class Loop:
    """A loop around a site that is being edited.

    Attributes:
        index: The number of the iteration that runs.
        length: How many there are; None for a `while_loop`.
        rows: If it has a name, the iterations that the edit applies to.
    """

    index: Any
    length: int | None
    rows: tuple[int, ...] | None = None

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


def along_mesh(axes: Sequence[tuple[str, int]]) -> list[Loop]:
    """The axes of the mesh around code that runs per shard: each shard gets its part, as each iteration does."""
    return [Loop(jax.lax.axis_index(name), size) for name, size in axes]


def rows_along(rows: Sequence[Row], axis: int) -> tuple[int, ...]:
    """The iteration numbers of some rows along one of the named loops."""
    return tuple(sorted({row[axis] for row in rows}))


def recorded_arrays(
    record: Record,
    call: int,
    arrays: list[Any],
    site: Site,
    view: View,
    loops: Sequence[Loop],
    mesh_axes: Sequence[tuple[str, int]] = (),
) -> tuple[list[Any], Any]:
    """The arrays of a call of a record, for a site inside these loops, and where it has a value; None: everywhere."""
    if call >= len(record.values):
        raise EditError(
            f"edit of {site.path!r} ({site.source}): the record has {len(record.values)} calls, but this is call "
            f"{call}, counted from 0"
        )
    if record.counts[call] is not None:
        raise EditError(
            f"edit of {site.path!r} ({site.source}): the record is of a while_loop, of which it has only the last "
            "iteration"
        )
    recorded_along = {axis.name for axis in record.axes[call] if axis.kind == "mesh"}
    mesh_axes = [(name, size) for name, size in mesh_axes if name in recorded_along]
    new = given_arrays(record.values[call], arrays, site, view, loops, mesh_axes)
    taken = record.taken[call]
    if taken is None:
        return new, None
    recorded_axes = [axis for axis in record.axes[call] if axis.on_extra("taken")]
    by_name = dict(mesh_axes)
    remaining = iter(loops)
    for axis in recorded_axes:
        if axis.is_loop:
            taken = next(remaining).slice_of(taken)
        elif axis.kind == "mesh" and axis.name in by_name:
            taken = along_mesh([(axis.name, by_name[axis.name])])[0].slice_of(taken)
    if any(sum(axis.on_leaf(i) for axis in view.axes) < jnp.ndim(taken) for i in range(len(arrays))):
        raise EditError(
            f"edit of {site.path!r} ({site.source}): examples took different branches in the run that was recorded"
        )
    return new, jnp.reshape(taken, jnp.shape(taken) + (1,) * (len(view.axes) - jnp.ndim(taken)))


def given_arrays(
    new: Any,
    arrays: list[Any],
    site: Site,
    view: View,
    loops: Sequence[Loop] = (),
    mesh_axes: Sequence[tuple[str, int]] = (),
) -> list[Any]:
    """The arrays of a new value for a site.

    The value may have the axes of the loops around the site in front, and then those of the mesh, like a record; axes
    of named loops may be missing. Each iteration and each shard then gets its part.
    """
    return [_fitted(x, a, site, view, i, loops, mesh_axes) for i, (x, a) in enumerate(zip(_leaves(new, site), arrays))]


def at_positions(
    new: list[Any], old: list[Any], positions: Collection[int], axis: int, site: Site, view: View
) -> list[Any]:
    """The new arrays at some positions along an axis, and the old ones elsewhere."""
    found = []
    for i, (a, b) in enumerate(zip(new, old)):
        mapped = sum(each.on_leaf(i) for each in view.axes)
        own = jnp.shape(b)[mapped:]
        if not -len(own) <= axis < len(own):
            raise EditError(f"edit of {site.path!r} ({site.source}): a value of shape {list(own)} has no axis {axis}")
        length = own[axis]
        beyond = [p for p in positions if not -length <= p < length]
        if beyond:
            raise EditError(
                f"edit of {site.path!r} ({site.source}): a value of shape {list(own)} has no position {beyond[0]} "
                f"along axis {axis}"
            )
        chosen = np.isin(np.arange(length), [p % length for p in positions])
        along = axis % len(own) + mapped
        shape = [-1 if d == along else 1 for d in range(jnp.ndim(b))]
        found.append(jnp.where(jnp.asarray(chosen).reshape(shape), a, b))
    return found


def checked_leaves(new: Any, arrays: Sequence[Any], site: Site, what: str = "") -> list[Any]:
    """The arrays of a new value, which must have the structure, shapes and dtypes of the old one.

    Args:
        new: The new value.
        arrays: The old arrays.
        site: The site.
        what: What it is, if not the value itself, for the message.
    """
    return [_checked(x, _jax.typeof(a), site, what) for x, a in zip(_leaves(new, site), arrays)]


def _leaves(new: Any, site: Site) -> list[Any]:
    """The leaves of a new value at the positions where the site has arrays."""
    leaves, tree = jax.tree.flatten(new)
    if tree != site.tree:
        raise EditError(f"edit of {site.path!r} ({site.source}): expected the structure {site.tree}, got {tree}")
    return [x for x, is_array in zip(leaves, site.arrays) if is_array]


def _checked(new: Any, expected: Any, site: Site, what: str = "") -> Any:
    """A new leaf as an array of exactly the expected type; Python numbers take its dtype."""
    is_number = isinstance(new, (bool, int, float, complex)) or getattr(_jax.typeof(new), "weak_type", False)
    array = jnp.asarray(new, expected.dtype) if is_number else jnp.asarray(new)
    if array.shape != expected.shape or array.dtype != expected.dtype:
        raise EditError(
            f"edit of {what}{site.path!r} ({site.source}): expected {describe(expected)}, got {describe(array)}"
        )
    return array


def _fitted(
    new: Any,
    old: Any,
    site: Site,
    view: View,
    index: int,
    loops: Sequence[Loop],
    mesh_axes: Sequence[tuple[str, int]],
) -> Any:
    """A given leaf, fitted to an array that may have mapped axes in front; the leaf may lack them."""
    expected = _jax.typeof(old)
    mapped = sum(axis.on_leaf(index) for axis in view.axes)
    shapes = (expected.shape, expected.shape[mapped:])
    unnamed = [loop for loop in loops if loop.rows is None]
    meshes = _mesh_axes_of(new, old, mesh_axes)
    fronts = [[*around, *on_mesh] for around in (loops, unnamed, []) for on_mesh in meshes]
    for front in fronts:
        shape = jnp.shape(new)
        if front and shape[len(front) :] in shapes and len(shape) >= len(front) and all(map(Loop.fits, front, shape)):
            for loop in front:
                new = loop.slice_of(new)
            break
    if mapped and jnp.shape(new) == expected.shape[mapped:]:
        new = jnp.broadcast_to(jnp.asarray(new), expected.shape)
    # In a shard_map JAX tells apart what varies over the mesh; a new value takes the place of one that does.
    return _jax.varying_over(_checked(new, expected, site), _jax.varying_axes(old))


def of_shard(new: Any, old: Any, shapes: Sequence[tuple[int, ...]], mesh_axes: Sequence[tuple[str, int]]) -> Any:
    """This shard's part of an array with axes of the mesh in front of one of these shapes; any other as it is."""
    for front in _mesh_axes_of(new, old, mesh_axes):
        shape = jnp.shape(new)
        if front and shape[len(front) :] in shapes and all(map(Loop.fits, front, shape)):
            for axis in front:
                new = axis.slice_of(new)
            break
    return new


def _mesh_axes_of(new: Any, old: Any, mesh_axes: Sequence[tuple[str, int]]) -> list[list[Loop]]:
    """The axes of the mesh that a value may have: all, those that the old one varies over, or none."""
    if not mesh_axes or jnp.ndim(new) <= jnp.ndim(old):
        return [[]]
    varying = [axis for axis in mesh_axes if axis[0] in _jax.varying_axes(old)]
    return [along_mesh(mesh_axes), along_mesh(varying), []]
