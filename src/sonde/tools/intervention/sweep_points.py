"""The points of a patch sweep at one site: the part of an iteration that is replaced, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sonde.core import InsideRequest, Put, Supplied, Where, arrays_in, put_by_rule, row_path
from sonde.errors import CaptureError
from sonde.tools.execution.record_values import Seen
from sonde.tools.intervention.patch_values import SELECTED, SELECTED_ALONG, in_record

Axes = tuple[int, ...]


def checked_axes(axis: Any) -> Axes:
    """The axes that an argument `axis=` names.

    Raises:
        TypeError: It is not a number, a tuple of numbers or None.
    """
    axes = () if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    if isinstance(axis, (bool, str)) or not all(isinstance(a, int) and not isinstance(a, bool) for a in axes):
        raise TypeError(f"axis= must be a number, a tuple of numbers or None, got {axis!r}")
    return axes


@dataclasses.dataclass(frozen=True)
class Target:
    """The points of a site.

    Attributes:
        seen: Its clean value, with all rows of a named loop.
        loops: The lengths of the loops around it.
        lengths: How many points there are along each of the axes.
        axes: Along which axes.
        directions: Directions along the last axis, each a separate point; None patches all of it.
    """

    seen: Seen
    loops: tuple[int, ...]
    lengths: tuple[int, ...]
    axes: Axes
    directions: Any = None

    @classmethod
    def of(cls, seen: Seen, axes: Axes, directions: Any = None) -> Target:
        """The points of a value.

        Raises:
            CaptureError: It is in a `while_loop`.
            ValueError: It has no such axes, or its last axis does not have the length of the directions.
        """
        where = f"{seen.path!r} ({seen.site.line})"
        if seen.count is not None:
            raise CaptureError(
                f"patch_sweep cannot patch {where}: it is in a while_loop, of which only the last iteration is "
                "recorded; use a scan, or a fori_loop with known bounds"
            )
        mapped = len(seen.axes) - seen.loops
        found = set()
        arrays = arrays_in(seen.value)
        for x in arrays:
            own = x.shape[seen.loops + mapped :]
            beyond = [a for a in axes if not -len(own) <= a < len(own)]
            if beyond:
                raise ValueError(
                    f"patch_sweep: {where} has the shape {list(own)} and no axis {beyond[0]}; axis=None patches whole "
                    "values"
                )
            if len({a % len(own) for a in axes}) < len(axes):
                raise ValueError(f"patch_sweep: axis={axes} names an axis of {where} twice: its shape is {list(own)}")
            if directions is not None and (not own or own[-1] != directions.shape[1] or -1 in axes):
                raise ValueError(
                    f"patch_sweep: {where} has the shape {list(own)}, and directions= are {directions.shape[1]} long: "
                    "they are vectors along the last axis, which then cannot be in axis="
                )
            found.add(tuple(own[a] for a in axes))
        if len(found) != 1:
            raise ValueError(
                f"patch_sweep: the arrays of {where} must have one length along axis {axes}, got {sorted(found)}"
            )
        return cls(seen, arrays[0].shape[: seen.loops], found.pop(), axes, directions)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the scores: loops, axes, directions."""
        return (*self.loops, *self.lengths, *(() if self.directions is None else (len(self.directions),)))

    @property
    def points(self) -> int:
        """How many points there are."""
        return int(np.prod(self.shape, dtype=np.int64))

    def scores(self, scores: Any) -> dict[str, tuple[tuple[int, ...], Any]]:
        """The scores of all points by name, with the row; each row of a named loop has its own name."""
        shaped = scores.reshape(self.shape)
        named = [(i, axis.rows) for i, axis in enumerate(self.seen.axes) if axis.rows is not None]
        call = f"[{self.seen.call}]" if self.seen.call else ""
        found = {}
        for index in np.ndindex(*(len(rows) for _, rows in named)):
            numbers = tuple(rows[n] for n, (_, rows) in zip(index, named))
            if named and self.seen.rows is not None and numbers not in self.seen.rows:
                continue
            at: list[Any] = [slice(None)] * shaped.ndim
            for n, (i, _) in zip(index, named):
                at[i] = n
            found[row_path(self.seen.path, numbers) + call] = numbers, shaped[tuple(at)]
        return found

    @property
    def put(self) -> Put:
        """How a point is put in place."""
        return SELECTED if self.directions is None else SELECTED_ALONG

    def supplied(self, arrays: Sequence[Any], where: Where, point: jax.Array) -> Supplied:
        """The clean value, and at which elements the point is; nowhere if the point belongs to another site.

        Args:
            arrays: The arrays that are there.
            where: Where the program is.
            point: The number of the point, counted from the first of this target.
        """
        is_there, steps = in_record(where, self.seen)
        first: Any = 0
        for length, step in zip(self.loops, steps):
            first = first * length + step
        inner = int(np.prod(self.shape[len(self.loops) :], dtype=np.int64))
        at = point - first * inner
        is_there = is_there & (at >= 0) & (at < inner)
        if self.seen.taken is not None:  # the clean run did not compute it
            taken = self.seen.taken
            for step in steps[: jnp.ndim(taken)]:
                taken = jax.lax.dynamic_index_in_dim(taken, step, keepdims=False)
            is_there = is_there & jnp.any(taken)
        *positions, direction = jnp.unravel_index(at, (*self.lengths, inner // int(np.prod(self.lengths, dtype=int))))
        clean = [where.slice_of(x, i, steps) for i, x in enumerate(arrays_in(self.seen.value))]
        masks = []
        for i, old in enumerate(arrays):
            mask, own = is_there, jnp.ndim(old) - where.mapped(i)
            for axis, position, length in zip(self.axes, positions, self.lengths):
                along = axis % own + where.mapped(i)
                is_position = jnp.arange(length) == position
                mask = mask & is_position.reshape([-1 if d == along else 1 for d in range(jnp.ndim(old))])
            masks.append(jnp.broadcast_to(mask, jnp.shape(old)))
        if self.directions is None:
            return Supplied([clean, masks])
        unit = jnp.asarray(self.directions)[direction]
        units = [jnp.broadcast_to(unit.astype(x.dtype), jnp.shape(x)) for x in arrays]
        return Supplied([clean, masks, units])


@dataclasses.dataclass(frozen=True)
class PointRule:
    """The rule that puts one point of several targets in place.

    Attributes:
        targets: The targets, at different sites or calls; all with directions, or none.
        point: The number of the point, counted from the first of the first target.
    """

    targets: Sequence[Target]
    point: Any

    def __call__(self, arrays: Sequence[Any], where: Where) -> Supplied | None:
        """What is put at a place."""
        start = 0
        for target in self.targets:
            if (target.seen.path, target.seen.call) == (where.path, where.call):
                return target.supplied(arrays, where, self.point - start)
            start += target.points
        return None

    def applied_to(self, f: Callable[..., Any], inside: InsideRequest | None) -> Callable[..., Any]:
        """`f` with the point in place."""
        paths = [target.seen.path for target in self.targets]
        return put_by_rule(f, self, self.targets[0].put, paths=paths, inside=inside)
