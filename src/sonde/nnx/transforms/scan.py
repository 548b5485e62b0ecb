"""`nnx.scan`: a function over the elements along an axis, with a carry from one iteration to the next.

Every leaf of the arguments is one of: *scanned* (an axis is given; the function sees a slice), *broadcast* (None), or
*carried* (`nnx.Carry`). A Variable that is scanned comes back scanned, with the new slices stacked. Changes of a
broadcast Variable are dropped, as in Flax: every iteration sees the value from before the loop. Without graph updates
such a Variable is carried instead, again as in Flax. To find what the function changes, it is traced once before the
loop is made; the loop reuses that trace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from sonde.core import capture_state
from sonde.nnx.structure.definitions import Path
from sonde.nnx.transforms.axis_metadata import with_axis_names
from sonde.nnx.transforms.bounded_cache import PROGRAMS, Recent
from sonde.nnx.transforms.leaf_values import numbering
from sonde.nnx.transforms.lifting import Entered, Taken, enter, raw, take
from sonde.nnx.transforms.loops import returned
from sonde.nnx.transforms.options import (
    MISSING,
    also_decorator,
    named_after,
    named_like,
    positional,
)
from sonde.nnx.transforms.outcome import Outcome
from sonde.nnx.transforms.prefixes import Carry, Prefix, StateAxes, prepare
from sonde.nnx.transforms.result_lists import Lists
from sonde.nnx.variable.array_references import is_reference
from sonde.nnx.variable.variable import Variable

T = TypeVar("T")


@also_decorator
def scan(
    f: Callable[..., Any] = MISSING,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    in_axes: Prefix = (Carry, 0),
    out_axes: Prefix = (Carry, 0),
    transform_metadata: Mapping[str, Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.lax.scan` for functions of Modules and Variables, with any number of arguments along any axes.

    Args:
        f: The function; leave it out to use `scan` as a decorator with options.
        length: The number of iterations, if nothing is scanned.
        reverse: Whether to run from the last element to the first.
        unroll: See `jax.lax.scan`.
        in_axes: For each argument, the axis to scan along, None for "the same in all iterations", `nnx.Carry` for the
            carry, `StateAxes` for the Variables of a Module, or containers of axes.
        out_axes: For each output the axis along which to stack it, and `nnx.Carry` for the carry.
        transform_metadata: `{nnx.PARTITION_NAME: name}`, see `nnx.vmap`.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.

    Raises:
        ValueError: `nnx.Carry` is there more than once, or only on one side; the axes do not fit; the carry changes its
            form or its Variables; `graph` is False and a Variable occurs twice.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layers = nnx.Dict(w=nnx.Param(jnp.array([2.0, 3.0])))
        >>> float(nnx.scan(lambda x, layer: layer.w * x, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(1.0, layers))
        6.0
    """
    run_mode = prepare("scan", f, graph, graph_updates, in_axes=in_axes, out_axes=out_axes)
    carry_in, carry_out = _position_of_carry(in_axes, "in_axes"), _position_of_carry(out_axes, "out_axes")
    if (carry_in is None) != (carry_out is None):
        raise ValueError(
            f"nnx.scan: a carry is both an argument and an output, so Carry must be in both in_axes and out_axes or in "
            f"neither, got in_axes={in_axes} and out_axes={out_axes}."
        )
    _check_out_axes(out_axes)
    fn = with_axis_names(f, in_axes, out_axes, transform_metadata, run_mode.graph)
    options = {"length": length, "reverse": reverse, "unroll": unroll, "_split_transpose": _split_transpose}

    scans: Recent[_Scan] = Recent(PROGRAMS)

    @named_like(f)
    def scanned(*args: Any, **kwargs: Any) -> Any:
        args = positional(f, args, kwargs)
        taken = take("scan", run_mode, args)
        if capture_state() is not None:  # captures see the caller's nodes, which must not be kept
            return _Scan(fn, taken, in_axes, out_axes, carry_in, carry_out, taken.nodes).run(taken, options)
        make = functools.partial(_Scan, fn, taken, in_axes, out_axes, carry_in, carry_out)
        return scans.get(taken.structure, make).run(taken, options)

    return scanned


def _position_of_carry(axes: Prefix, what: str) -> int | None:
    """Where the carry is among arguments or outputs: a position, -1 if it is all there is, None if there is none."""
    if axes is Carry:
        return -1
    if not isinstance(axes, (tuple, list)):
        return None
    carry_positions = [i for i, axis in enumerate(axes) if axis is Carry]
    if len(carry_positions) > 1:
        first, second = carry_positions[:2]
        raise ValueError(f"nnx.scan: found multiple Carry definitions, at {what}[{first}] and {what}[{second}].")
    return carry_positions[0] if carry_positions else None


def _check_out_axes(out_axes: Prefix) -> None:
    parts = out_axes if isinstance(out_axes, (tuple, list)) else (out_axes,)
    for i, axis in enumerate(parts):
        values = axis.axes if isinstance(axis, StateAxes) else (axis,)
        if any(value is None for value in values):
            where = f"out_axes[{i}]" if isinstance(out_axes, (tuple, list)) else "out_axes"
            raise ValueError(
                f"nnx.scan: cannot broadcast output state. Got {where}={axis}; an output is stacked along an axis, or "
                f"it is the Carry."
            )


class _Scan:
    """All calls of a scanned function with arguments of one structure: they share the trace of the function."""

    def __init__(
        self,
        fn: Callable[..., Any],
        taken: Taken,
        in_axes: Prefix,
        out_axes: Any,
        carry_in: int | None,
        carry_out: int | None,
        originals: Sequence[tuple[Path, Any]] | None = None,
    ):
        self._fn = fn
        self._originals = originals
        self._mode = taken.mode
        self._structure = taken.structure
        self._n_out = len(out_axes) if isinstance(out_axes, (tuple, list)) else None
        self._out_axes = out_axes
        self._carry_out = carry_out
        structure = taken.structure
        if carry_in == -1 and len(structure.names) != 1:
            raise ValueError(f"nnx.scan: in_axes=Carry takes one argument, got {len(structure.names)}.")
        rest_axes = out_axes
        if carry_out is not None:
            rest_axes = () if carry_out == -1 else (*out_axes[:carry_out], *out_axes[carry_out + 1 :])
        self._lists = Lists(
            "scan", structure, taken.leaves, arguments=("in_axes", in_axes), output=("out_axes", rest_axes)
        )
        self._axes = self._lists.in_values
        self._carry_number = None if carry_in is None else max(carry_in, 0)
        self._carry_name = None if carry_in is None else structure.names[max(carry_in, 0)]
        # leaves of the carry, in the order in which they are visited
        self._round = [i for i, path in enumerate(structure.paths) if path[0] == self._carry_name]
        # the carry keeps its form (see `returned`), so its arrays are returned as part of it
        self._kept = () if carry_in is None else numbering(structure.definition[4][max(carry_in, 0)])
        scanned = set(range(len(self._axes))) - set(self._round)
        self._scanned = [i for i in sorted(scanned) if isinstance(self._axes[i], int)]
        # bare arrays in the other arguments; those that are not scanned may get new values all the same
        bare = [i for i in sorted(scanned) if structure.kinds[i] is None and not is_reference(taken.leaves[i])]
        self._bare = [i for i in bare if not isinstance(self._axes[i], int)]
        self._bare_carried = [i for i in self._bare if self._axes[i] is Carry]
        self._traced = jax.jit(self._step, inline=True)  # jit caches the trace, so the user's function runs once

    def run(self, taken: Taken, options: dict[str, Any]) -> Any:
        axes, values, kinds, step = self._axes, taken.values, self._lists.kinds, self._traced
        xs = [jax.tree.map(functools.partial(_to_front, axis=axes[i]), values[i]) for i in self._scanned]

        # Traced for the first element: what the function changes must be known before the loop is made.
        def first(values: list[Any], xs: list[Any]) -> Any:
            start = list(values)
            for i, x in zip(self._scanned, xs):
                start[i] = jax.tree.map(_first_of, x)
            return step(start)

        _, _, (_, outcome) = jax.eval_shape(
            first, [None if i in self._scanned else x for i, x in enumerate(values)], xs
        )
        self._check(outcome)
        changed = outcome.changed
        # Broadcast Variables keep the value from before the loop, as in Flax; without graph updates they are carried.
        forgotten = {i for i in changed if axes[i] is None and self._mode.updates}
        carried = [i for i in changed if i not in {*self._scanned, *self._round, *forgotten}]
        carried += [i for i, axis in enumerate(axes) if axis is Carry and i not in {*carried, *self._round}]
        moving = [*self._round, *carried]
        stacked = [i for i in changed if i in set(self._scanned)]

        def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], Any]:
            inputs = list(values)
            for i, value in zip([*moving, *self._scanned], [*carry, *xs]):
                inputs[i] = value
            round_, arrays, (lists, outcome) = step(inputs)
            built, news = outcome.split(lists)
            new_values = dict(zip(changed, news))
            new_values.update(zip([*self._round, *self._bare_carried], [*round_, *arrays]))
            return [new_values.get(i, inputs[i]) for i in moving], (built, [new_values[i] for i in stacked])

        start = [values[i] for i in moving]
        final, (built, slices) = jax.lax.scan(named_after(self._fn, body), start, xs, **options)
        built = [_moved_back(x, kinds[n]) for x, n in zip(built, outcome.lists_of_leaves)]
        new_values = {i: values[i] for i in forgotten}
        new_values.update(zip(moving, final))
        new_values.update({i: _moved_back(x, axes[i]) for i, x in zip(stacked, slices)})
        stacked_output = taken.settle((outcome.join(built, [new_values[i] for i in changed], len(kinds)), outcome))
        return self._with_carry(taken, stacked_output, new_values)

    def _step(self, values: list[Any]) -> Any:
        """Runs one iteration: returns the leaves of the carry, and the other outputs with what changed."""
        entered = enter(self._structure, values, verb="scan", mode=self._mode, originals=self._originals)
        out = self._fn(*entered.args)
        # What is carried must end in the Variables that it began in, or the next iteration would not see it.
        entered.put_back([*self._round, *(i for i, axis in enumerate(self._axes) if axis is Carry)])
        arrays = entered.put_back_arrays(self._bare)  # what is the same in all iterations is forgotten
        round_, stacked_output = self._split(entered, out)
        carried = [arrays.get(i, values[i]) for i in self._bare_carried]
        return round_, carried, entered.leave(stacked_output, placement=self._lists, skip=self._kept)

    def _split(self, entered: Entered, out: object) -> tuple[list[Any], Any]:
        """The leaves of the carry, and the other outputs."""
        position = self._carry_out
        if position is None:
            return [], out
        if position == -1:
            round_, stacked_output = out, ()
        else:
            if not isinstance(out, (tuple, list)) or len(out) != self._n_out:
                returned_form = f"{len(out)} values" if isinstance(out, (tuple, list)) else f"a {type(out).__name__}"
                raise ValueError(
                    f"nnx.scan: out_axes={self._out_axes} needs a tuple of {self._n_out} outputs, got {returned_form}."
                )
            round_, stacked_output = out[position], (*out[:position], *out[position + 1 :])
        leaves = returned(entered, round_, self._round, str(self._carry_name))
        return [raw(x) for x in leaves], stacked_output

    def _check(self, outcome: Outcome) -> None:
        """Refuses new arrays in arguments that are the same in all iterations: each would make another one."""
        for n in outcome.lists_of_leaves:
            kind = self._lists.kinds[n]
            if not isinstance(kind, int):
                raise (TypeError if kind is Carry else ValueError)(
                    "nnx.scan: the function makes a new Variable or array in an argument that is broadcast (axis None) "
                    "or carried, where there is no axis to stack it along. Make it before the scan, and change its "
                    "value in the function; or scan over the argument."
                )

    def _with_carry(self, taken: Taken, stacked_output: Any, new_values: dict[int, Any]) -> Any:
        """The output with the carry in its place."""
        bare = [i for i in self._round if not isinstance(taken.leaves[i], Variable)] + self._bare_carried
        if not bare and self._carry_number is None:
            return stacked_output
        arguments = taken.renewed({i: new_values[i] for i in bare})
        if self._carry_out is None or self._carry_number is None:
            return stacked_output
        carry = arguments[self._carry_number]
        if self._carry_out == -1:
            return carry
        return (*stacked_output[: self._carry_out], carry, *stacked_output[self._carry_out :])


def _moved_back(x: T, axis: int) -> T:
    return jax.tree.map(functools.partial(_from_front, axis=axis), x)


def _to_front(x: jax.Array, axis: int) -> Any:
    return jnp.moveaxis(x, axis, 0) if axis != 0 else x


def _from_front(x: jax.Array, axis: int) -> Any:
    return jnp.moveaxis(x, 0, axis) if axis != 0 else x


def _first_of(x: jax.Array) -> Any:
    return jax.lax.index_in_dim(x, 0, keepdims=False)
