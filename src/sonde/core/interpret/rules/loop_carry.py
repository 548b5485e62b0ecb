"""What a `while_loop` carries for the sites in it, and how an iteration changes it.

If the elements of a map stop at different iterations, what the loop carries has the axes of its predicate in front.
Every array has a form for that (`_to_front`), besides its form in items.

A branch that runs beside its siblings gives the sites in it a gate. A loop in the branch passes it on: then the flag of
a site is known before the loop, also for an element whose loop never runs (`gate_from_outside`). The gate of a choice
that is made in the body is known only where the body has run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from sonde import _jax
from sonde.core.interpret.dataflow import Dataflow, Read
from sonde.core.interpret.items import Extra, Item, build_items, firsts
from sonde.core.marks.axes import Axis, repeated_along


class LoopState:
    """The part of a loop's state that belongs to the items of its body, or of its test.

    A value that has several names, as one that is passed from function to function does, is carried once.

    Args:
        specs: The items, as an iteration records them.
        numbers: Equal for arrays of these items that are one in the program.
        active: The type of the predicate.
        last: How many of the last iterations to keep.
        loop: The name by which axes are known to be axes of the predicate; see `Axis.stopping`.
    """

    def __init__(
        self,
        specs: Sequence[Item],
        numbers: Sequence[int],
        active: Any,
        last: int,
        loop: object,
    ) -> None:
        self.active = active
        self.n = len(active.shape)
        self.last = last
        self.loop = loop
        self.specs = [self._with_active_axes(spec) for spec in specs]
        # For each array its item, its name, and which axes it has, when it is recorded and when it is carried.
        recorded = [(spec, name, has) for spec in specs for name, has in zip(spec.names, spec.has)]
        carried = [has for spec in self.specs for has in spec.has]
        self.chosen, self.numbers = firsts(map(self._kind, numbers, recorded))
        self.recorded = [recorded[i] for i in self.chosen]
        # Where each array that is carried has the axes of the predicate.
        self.axes = [
            [sum(carried[i][:axis]) for axis in self._active_axes(spec)]
            for i, (spec, _, _) in zip(self.chosen, self.recorded)
        ]

    def _kind(self, number: int, recorded: tuple[Item, Extra | None, list[bool]]) -> Hashable:
        """Equal for arrays that are one, begin with the same value and grow by the same axes."""
        spec, name, has = recorded
        return number, name, tuple(has), tuple((i, spec.view.axes[i].size) for i in self._active_axes(spec))

    def _each(self, carried: Sequence[Any]) -> list[Any]:
        """The recorded arrays, from those that are carried."""
        return [carried[i] for i in self.numbers]

    # -- before and in the loop ----------------------------------------------------------------------------------------

    def no_iterations(self) -> Any:
        """How many times every element has run before the loop."""
        return _jax.zeros_of_type(self.active.update(dtype=jnp.dtype("int32"), weak_type=False))

    def empty(self, types: Sequence[Any], values: Sequence[Any] = ()) -> list[Any]:
        """What is carried before the first iteration: `known` where it is not None, otherwise zeros."""
        values = values or [None] * len(types)
        chosen = frozenset(self.chosen)
        zeros = [_jax.zeros_of_type(t) if i in chosen and values[i] is None else values[i] for i, t in enumerate(types)]
        start = self.first(zeros)
        return start if self.last == 1 else [jnp.stack([x] * self.last, axis=self.n) for x in start]

    def first(self, new: Sequence[Any]) -> list[Any]:
        """What is carried after something that always runs once."""
        return [self._to_front(x, axis) for x, axis in zip(self._grown(new), self.axes)]

    def begin(self, new: Sequence[Any]) -> list[Any]:
        """What is carried after a run that comes before the first iteration."""
        if self.last == 1:
            return self.first(new)
        return self._put(self.first(new), self.empty([_jax.typeof(x) for x in new]), 0)

    def update(self, number: Any, recorded: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
        """What is carried after a run, of which this is the number, that recorded these arrays."""
        latest = self.first(recorded)
        return latest if self.last == 1 else self._put(latest, kept, jnp.max(number, initial=0))

    def _put(self, new: Sequence[Any], kept: Sequence[Any], slot: Any) -> list[Any]:
        slot = slot % self.last
        return [lax.dynamic_update_index_in_dim(ring, x, slot, self.n) for x, ring in zip(new, kept)]

    # -- after the loop ------------------------------------------------------------------------------------------------

    def items(self, kept: Sequence[Any], count: Any, loop: object, *, runs: Any) -> list[Item]:
        """The items after a loop of `count` iterations in which they were recorded `runs` times."""
        if self.last == 1:
            arrays = [self._from_front(x, axes) for x, axes in zip(kept, self.axes)]
            items = build_items([spec.inside_loop(loop) for spec in self.specs], self._each(arrays))
        else:
            arrays = [self._in_order(ring, runs, axis) for ring, axis in zip(kept, self.axes)]
            axis = Axis("while", self.last, loop=loop)
            items = build_items([spec.inside(axis) for spec in self.specs], self._each(arrays))
        for item, spec in zip(items, self.specs):
            if "count" not in item.extras:
                active = self._active_axes(spec)
                item.extras["count"] = count
                has = [i in active for i in range(len(spec.view.axes))]
                item.view = item.view.extra_on("count", [False] * (self.last > 1) + has)
        return items

    def _in_order(self, ring: Any, count: Any, axes: list[int]) -> Any:
        """Rotates a ring so that its rows are the last iterations in order; rows that were never filled come last."""

        def turn(ring: Any, count: Any) -> Any:
            oldest = count - jnp.minimum(count, self.last)
            return jnp.take(ring, (oldest + jnp.arange(self.last)) % self.last, axis=0)

        for _ in range(self.n):
            turn = jax.vmap(turn)
        rows = jnp.moveaxis(turn(ring, count), self.n, 0)
        return jax.vmap(lambda row: self._from_front(row, axes))(rows)

    # -- the axes of the predicate -------------------------------------------------------------------------------------

    def _to_front(self, x: Any, axes: list[int]) -> Any:
        """An array with the axes of the predicate in front."""
        return jnp.moveaxis(x, axes, range(self.n)) if self.n else x

    def _from_front(self, x: Any, axes: list[int]) -> Any:
        """The array again."""
        return jnp.moveaxis(x, range(self.n), axes) if self.n else x

    def _active_axes(self, spec: Item) -> list[int]:
        """Which axes of an item are those of the predicate."""
        return [i for i, axis in enumerate(spec.view.axes) if self.loop in axis.stopping]

    def _with_active_axes(self, spec: Item) -> Item:
        """An item all of whose arrays vary over the predicate: an element that never ran has zeros in each."""
        active, extras = self._active_axes(spec), frozenset(spec.extras)
        axes = [
            dataclasses.replace(a, leaves=None, lacking=a.lacking - extras) if i in active else a
            for i, a in enumerate(spec.view.axes)
        ]
        return dataclasses.replace(spec, view=spec.view.replace(axes=tuple(axes)))

    def _grown(self, arrays: Sequence[Any]) -> list[Any]:
        """What is carried of the arrays of an iteration, made to vary over whatever the predicate varies over."""
        varying, grown = _jax.varying_axes_of_type(self.active), []
        for i, (spec, name, has) in zip(self.chosen, self.recorded):
            array = _with_axes(arrays[i], list(has), spec.view.axes, self._active_axes(spec))
            array = array if name == "token" else _jax.varying_over(array, varying)
            grown.append(_jax.strongly_typed(array))  # as the zeros are with which the loop begins
        return grown


def _with_axes(array: _jax.AnyArray, has: list[bool], axes: Sequence[Axis], wanted: Sequence[int]) -> Any:
    """An array with some axes that it does not vary over, too."""
    for i in wanted:
        if not has[i]:
            array = repeated_along(array, axes[i].size, sum(has[:i]))
            has[i] = True
    return array


def gate_from_outside(jaxpr: _jax.Jaxpr, position: int, consts: Sequence[Any]) -> Any:
    """An output of a loop body, if it is only constants of the loop joined by `and`; otherwise None."""
    return _FromOutside().inside(jaxpr, lambda i: consts[i] if i < len(consts) else None)(position)


class _FromOutside(Dataflow[Any]):
    """The value, computed again from existing arrays."""

    def of_equation(self, made: _jax.MadeBy, read: Read[Any]) -> Any:
        """The output, if all inputs are known."""
        is_made_again = made.primitive.name == "and" or _jax.only_moves(made.primitive)
        values = [read(i) for i in range(len(made.inputs))] if is_made_again else [None]
        return None if any(v is None for v in values) else made.primitive.bind(*values, **made.params)

    def sliced(self, answer: Any) -> Any:
        """A slice differs between iterations."""
        del answer

    def stacked(self, answer: Any, length: int) -> Any:
        """A constant of a loop, once for every iteration."""
        return jnp.broadcast_to(answer, (length, *jnp.shape(answer)))
