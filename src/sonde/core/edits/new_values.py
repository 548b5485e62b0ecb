"""The arrays that an edit puts at a site: from a function, a value, or a record of an earlier run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde import _jax
from sonde._array_text import describe
from sonde.core.interpret.where import Loop, Where
from sonde.core.marks.axes import extra_has, room_for_axes
from sonde.core.marks.site import Site
from sonde.core.records.record import Record
from sonde.errors import EditError


def along_mesh(axes: Sequence[tuple[str, int]]) -> list[Loop]:
    """The axes of the mesh around code that runs per shard: each shard gets its part, as each iteration does."""
    return [Loop(jax.lax.axis_index(name), size) for name, size in axes]


def recorded_arrays(record: Record, arrays: list[Any], where: Where) -> tuple[list[Any], Any]:
    """The arrays of a call of a record, and whether it has a value; None: yes."""
    call, site = where.call, where.site
    if call >= len(record.values):
        raise EditError(
            f"edit of {site.path!r} ({site.line}): the record has {len(record.values)} calls, but this is call "
            f"{call}, counted from 0"
        )
    if record.counts[call] is not None:
        return _arrays_of_while(record, arrays, where)
    recorded_along = {axis.name for axis in record.axes[call] if axis.kind == "mesh"}
    mesh_axes = tuple((name, size) for name, size in where.mesh_axes if name in recorded_along)
    recorded = given_arrays(record.values[call], arrays, where.around(mesh_axes=mesh_axes))
    taken = record.taken[call]
    if taken is None:
        return recorded, None
    recorded_axes = [axis for axis in record.axes[call] if axis.on_extra("taken")]
    by_name = dict(mesh_axes)
    remaining, axes = iter(where.loops), where.view.axes
    for axis in recorded_axes:
        if axis.is_loop:
            taken = next(remaining).slice_of(taken)
        elif axis.kind == "mesh" and axis.name in by_name:
            taken = along_mesh([(axis.name, by_name[axis.name])])[0].slice_of(taken)
    if any(where.mapped(i) < jnp.ndim(taken) for i in range(len(arrays))):
        raise EditError(
            f"edit of {site.path!r} ({site.line}): examples took different branches in the run that was recorded"
        )
    return recorded, jnp.reshape(taken, jnp.shape(taken) + (1,) * (len(axes) - jnp.ndim(taken)))


def check_is_whole(record: Record, path: object) -> None:
    """Raises an error if a record of a `while_loop` lacks iterations: what belongs there is not known."""
    for count, axes in zip(record.counts, record.axes):
        if count is None:
            continue
        n_recorded = next((axis.size or 0 for axis in axes if axis.kind == "while"), 1)
        if isinstance(count, _jax.Tracer):
            raise EditError(
                f"edit of {path!r}: the record is of a while_loop, and how many iterations it has is not known while "
                "the program is traced; make the edit outside of the jitted function"
            )
        if np.max(count, initial=0) > n_recorded:
            raise EditError(
                f"edit of {path!r}: the record is of a while_loop that ran {np.max(count)} times, of which it has only "
                f"the last {'iteration' if n_recorded == 1 else n_recorded}; capture more of them, with "
                f"last={np.max(count)}"
            )


def _arrays_of_while(record: Record, arrays: list[Any], where: Where) -> tuple[list[Any], Any]:
    """The arrays of a record of a `while_loop`, which has all its iterations, and whether it has one for this place."""
    site, axes = where.site, record.axes[where.call]
    count, taken, values = record.counts[where.call], record.taken[where.call], record.values[where.call]
    loop_axes = [axis for axis in axes if axis.is_loop]
    whiles = [loop for loop in where.loops if loop.length is None]
    if len(whiles) != 1 or sum(axis.kind == "scan" for axis in loop_axes) != len(where.loops) - 1:
        raise EditError(
            f"edit of {site.path!r} ({site.line}): the record is of a while_loop in other loops than those around the "
            "site, or in another while_loop; edit what the inner loop returns"
        )
    for loop in where.loops:
        if loop is whiles[0] and not any(axis.kind == "while" for axis in loop_axes):
            continue  # one row, without an axis
        axis = loop_axes.pop(0)
        values = jax.tree.map(loop.slice_of, values)
        if loop is not whiles[0] and axis.on_extra("count"):
            count = loop.slice_of(count)
        if taken is not None and axis.on_extra("taken"):
            taken = loop.slice_of(taken)
    sizes = dict(where.mesh_axes)
    mesh_axes = tuple((axis.name or "", sizes[axis.name or ""]) for axis in axes if axis.kind == "mesh")
    for shard, axis in zip(along_mesh(mesh_axes), [axis for axis in axes if axis.kind == "mesh"]):
        count = shard.slice_of(count) if axis.on_extra("count") else count
        taken = shard.slice_of(taken) if taken is not None and axis.on_extra("taken") else taken
    recorded = given_arrays(values, arrays, where.around((), mesh_axes))
    mapped = [axis for axis in axes if axis.kind == "vmap"]
    index, count = _jax.varying_alike(jnp.asarray(whiles[0].index), jnp.asarray(count))
    has_value = room_for_axes(index < count, extra_has(mapped, "count"))
    if taken is not None:
        has_value, taken = _jax.varying_alike(has_value, room_for_axes(jnp.asarray(taken), extra_has(mapped, "taken")))
        has_value &= taken
    if any(where.mapped(i) < jnp.ndim(has_value) for i in range(len(arrays))):
        raise EditError(
            f"edit of {site.path!r} ({site.line}): examples took different branches, or ran a different number of "
            "iterations, in the run that was recorded"
        )
    return recorded, has_value


def given_arrays(new: Any, arrays: list[Any], where: Where) -> list[Any]:
    """The arrays of a new value for a site.

    The value may have the axes of the loops around the site in front, and then those of the mesh, like a record; axes
    of outer loops, and of named loops, may be missing. Each iteration and each shard then gets its part.
    """
    return [_checked_part(x, a, where, i) for i, (x, a) in enumerate(zip(_leaves(new, where.site), arrays))]


def arrays_to_add(delta: Any, arrays: Sequence[Any], where: Where) -> list[Any]:
    """What to add to the arrays of a value: like `given_arrays`, of any dtype; None stands for nothing.

    Raises:
        EditError: It does not fit, or the program does not continue with what the site returns.
    """
    site = where.site
    parts, tree = jax.tree.flatten(delta, is_leaf=lambda x: x is None)
    if tree != site.tree:
        raise EditError(f"perturbation of {site.path!r} ({site.line}): expected the structure {site.tree}, got {tree}")
    parts = [x for x, is_array in zip(parts, site.arrays) if is_array]
    sums = []
    for i, (part, array) in enumerate(zip(parts, arrays)):
        expected = _jax.typeof(array)
        if part is None:
            sums.append(_jax.zeros_of_type(expected))
            continue
        fitted = _part(part, array, where, i)
        if jnp.shape(fitted) != expected.shape:
            raise EditError(
                f"perturbation of {site.path!r} ({site.line}): expected {describe(expected)}, got {describe(fitted)}"
            )
        sums.append(_jax.varying_over(jnp.asarray(fitted, expected.dtype), _jax.varying_axes(array)))
    return sums


def at_positions(
    new: list[Any], old: list[Any], positions: Collection[int] | jax.Array, axis: int, site: Site
) -> list[Any]:
    """The new arrays at some positions along an axis, and the old ones elsewhere.

    Positions that are traced may be beyond the axis: there is nothing to change there.
    """
    arrays = []
    for a, b in zip(new, old):
        own = jnp.shape(b)
        if not -len(own) <= axis < len(own):
            raise EditError(f"edit of {site.path!r} ({site.line}): a value of shape {list(own)} has no axis {axis}")
        length = own[axis]
        shape = [-1 if d == axis % len(own) else 1 for d in range(len(own))]
        if isinstance(positions, jax.Array):
            from_start = jnp.where(positions < 0, positions + length, positions).reshape(-1)
            chosen = (jnp.arange(length)[:, None] == from_start).any(1)
            arrays.append(jnp.where(chosen.reshape(shape), a, b))
            continue
        beyond = [p for p in positions if not -length <= p < length]
        if beyond:
            raise EditError(
                f"edit of {site.path!r} ({site.line}): a value of shape {list(own)} has no position {beyond[0]} "
                f"along axis {axis}"
            )
        chosen = np.isin(np.arange(length), [p % length for p in positions])
        arrays.append(jnp.where(jnp.asarray(chosen).reshape(shape), a, b))
    return arrays


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
        raise EditError(f"edit of {site.path!r} ({site.line}): expected the structure {site.tree}, got {tree}")
    return [x for x, is_array in zip(leaves, site.arrays) if is_array]


def _checked(new: Any, expected: Any, site: Site, what: str = "") -> Any:
    """A new leaf as an array of exactly the expected type; Python numbers take its dtype."""
    is_number = isinstance(new, (bool, int, float, complex)) or getattr(_jax.typeof(new), "weak_type", False)
    array = jnp.asarray(new, expected.dtype) if is_number else jnp.asarray(new)
    if array.shape != expected.shape or array.dtype != expected.dtype:
        remedy = "" if what else "; give such an array, or a function of the old value, as in lambda old: 0 * old"
        raise EditError(
            f"edit of {what}{site.path!r} ({site.line}): expected {describe(expected)}, got {describe(array)}{remedy}"
        )
    return array


def _checked_part(new: Any, old: Any, where: Where, index: int) -> Any:
    """The part of a new array that belongs here, of exactly the type of the old array."""
    part = _checked(_part(new, old, where, index), _jax.typeof(old), where.site)
    # In a shard_map JAX tells apart what varies over the mesh; a new value takes the place of one that does.
    return _jax.varying_over(part, _jax.varying_axes(old))


def _part(new: Any, old: Any, where: Where, index: int) -> Any:
    """The part of an array that belongs to this iteration and this shard, with the mapped axes of the old one.

    Args:
        new: The array. It may have axes of loops and meshes in front, and may lack the mapped axes.
        old: The array at the site.
        where: Where the program is.
        index: The position of the array in the value.
    """
    shape = jnp.shape(old)
    own = shape[where.mapped(index) :]
    unnamed = [loop for loop in where.loops if loop.rows is None]
    innermost = [list(where.loops[first:]) for first in range(len(where.loops))]
    fronts = [
        [*loops, *axes] for loops in (*innermost, unnamed, []) for axes in _mesh_axes_of(new, old, where.mesh_axes)
    ]
    for front in fronts:
        size = jnp.shape(new)
        fits = len(size) >= len(front) > 0 and size[len(front) :] in (shape, own)
        if fits and all(map(Loop.fits, front, size)):
            for axis in front:
                new = axis.slice_of(new)
            break
    if len(own) < len(shape) and jnp.shape(new) == own:
        new = jnp.broadcast_to(jnp.asarray(new), shape)
    return new


def _mesh_axes_of(new: Any, old: Any, mesh_axes: Sequence[tuple[str, int]]) -> list[list[Loop]]:
    """The axes of the mesh that a value may have: all, those that the old one varies over, or none."""
    if not mesh_axes or jnp.ndim(new) <= jnp.ndim(old):
        return [[]]
    varying = [axis for axis in mesh_axes if axis[0] in _jax.varying_axes(old)]
    return [along_mesh(mesh_axes), along_mesh(varying), []]
