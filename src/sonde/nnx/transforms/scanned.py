"""`nnx.scan`: a function over the elements along an axis, with something handed from one iteration to the next.

Every leaf of the arguments is one of: *scanned* (an axis is given; the function sees a slice), *broadcast* (None), or
*carried* (`nnx.Carry`). A Variable that is scanned comes back scanned, with the new slices stacked. A broadcast
Variable that the function changes is carried too, so that each iteration sees what the one before did. What the
function changes is found by tracing it once before the loop is made; the loop reuses that trace.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde.nnx._walk import build
from sonde.nnx.sharding import PARTITION_NAME
from sonde.nnx.transforms._lifting import Entered, Outcome, Taken, output, raw, take, write
from sonde.nnx.transforms._options import MISSING, mode, named_like, positional, refuse_bound_method
from sonde.nnx.transforms._prefixes import Carry, StateAxes, leaf_values
from sonde.nnx.transforms.axis_metadata import transform_metadata as named_axes
from sonde.nnx.transforms.loops import returned
from sonde.nnx.variable import Variable


def scan(
    f: Callable[..., Any] = MISSING,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    _split_transpose: bool = False,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
    transform_metadata: Mapping[str, Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.lax.scan` for functions of Modules and Variables, with any number of arguments along any axes.

    Args:
        f: the function; leave it out to use `scan` as a decorator with options.
        length: the number of iterations, if nothing is scanned.
        reverse: whether to go from the last element to the first.
        unroll: see `jax.lax.scan`.
        in_axes: for each argument, the axis to scan along, None for "the same in all iterations", `nnx.Carry` for the
            one that goes round, `StateAxes` for the Variables of a Module, or containers of axes.
        out_axes: for each output the axis along which to stack it, and `nnx.Carry` for the one that goes round.
        transform_metadata: `{nnx.PARTITION_NAME: name}`, see `nnx.vmap`.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: None or False.

    Raises:
        ValueError: `nnx.Carry` is there more than once, or only on one side; the axes do not fit; the carry changes its
            form or its Variables; `graph` is False and a Variable is met twice.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> layers = nnx.Dict(w=nnx.Param(jnp.array([2.0, 3.0])))
        >>> float(nnx.scan(lambda x, layer: layer.w * x, in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(1.0, layers))
        6.0
    """
    graph = mode("scan", graph, graph_updates)
    if f is MISSING:
        return functools.partial(
            scan,
            length=length,
            reverse=reverse,
            unroll=unroll,
            _split_transpose=_split_transpose,
            in_axes=in_axes,
            out_axes=out_axes,
            transform_metadata=transform_metadata,
            graph=graph,
        )
    refuse_bound_method("scan", f)
    carry_in, carry_out = _carry_place(in_axes, "in_axes"), _carry_place(out_axes, "out_axes")
    if (carry_in is None) != (carry_out is None):
        raise ValueError(
            f"nnx.scan: what is carried goes in and comes out, so Carry stands in both in_axes and out_axes or in "
            f"neither, got in_axes={in_axes} and out_axes={out_axes}."
        )
    _check_out_axes(out_axes)
    fn = f
    if transform_metadata and PARTITION_NAME in transform_metadata:
        name = transform_metadata[PARTITION_NAME]
        fn = named_axes(f, in_axes=in_axes, out_axes=out_axes, partition=name, graph=graph)
    options = {"length": length, "reverse": reverse, "unroll": unroll, "_split_transpose": _split_transpose}

    @named_like(f)
    def scanned(*args: Any, **kwargs: Any) -> Any:
        args = positional(f, args, kwargs)
        taken = take("scan", graph, args)
        axes = leaf_values(in_axes, taken.structure.definition, taken.leaves, who="scan", what="in_axes")
        return _Scan(fn, taken, axes, carry_in, carry_out, out_axes).run(options)

    return scanned


def _carry_place(axes: Any, what: str) -> int | None:
    """Where the carry is among arguments or outputs: a position, -1 for "it is all there is", None for nowhere."""
    if axes is Carry:
        return -1
    if not isinstance(axes, (tuple, list)):
        return None
    found = [i for i, axis in enumerate(axes) if axis is Carry]
    if len(found) > 1:
        raise ValueError(f"nnx.scan: found multiple Carry definitions, at {what}[{found[0]}] and {what}[{found[1]}].")
    return found[0] if found else None


def _check_out_axes(out_axes: Any) -> None:
    parts = out_axes if isinstance(out_axes, (tuple, list)) else (out_axes,)
    for i, axis in enumerate(parts):
        values = axis.axes if isinstance(axis, StateAxes) else (axis,)
        if any(value is None for value in values):
            where = f"out_axes[{i}]" if isinstance(out_axes, (tuple, list)) else "out_axes"
            raise ValueError(
                f"nnx.scan: cannot broadcast output state. Got {where}={axis}; an output is stacked along an axis, or "
                f"it is the Carry."
            )


@jax.tree_util.register_static
class _Said:
    """What a trace of the body says about its results: the form of the stacked outputs, and what changed."""

    __slots__ = ("axes", "outcome")

    def __init__(self, outcome: Outcome, axes: tuple[Any, ...]):
        self.outcome = outcome
        self.axes = axes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Said) and (self.outcome, self.axes) == (other.outcome, other.axes)

    def __hash__(self) -> int:
        return hash((self.outcome, self.axes))


class _Scan:
    """One call of a scanned function."""

    def __init__(self, fn: Any, taken: Taken, axes: Sequence[Any], carry_in: Any, carry_out: Any, out_axes: Any):
        self._fn = fn
        self._taken = taken
        self._axes = axes
        self._out_axes = out_axes
        self._carry_out = carry_out
        names, paths = taken.structure.names, taken.structure.paths
        self._carry_name = None if carry_in is None else names[max(carry_in, 0)]
        if carry_in == -1 and len(names) != 1:
            raise ValueError(f"nnx.scan: in_axes=Carry is for one argument, and there are {len(names)}.")
        # leaves of the argument that goes round, in the order in which they are met in it
        self._round = [i for i, path in enumerate(paths) if path[0] == self._carry_name]
        self._scanned = [i for i, axis in enumerate(axes) if isinstance(axis, int) and i not in set(self._round)]

    def run(self, options: dict[str, Any]) -> Any:
        axes, values = self._axes, self._taken.values
        step = jax.jit(self._step, inline=True)  # for its cache of traces: the user's function runs once
        xs = [jax.tree.map(functools.partial(_to_front, axis=axes[i]), values[i]) for i in self._scanned]
        start = list(values)
        for i, x in zip(self._scanned, xs):
            start[i] = jax.tree.map(_slice_of, x)
        said = jax.eval_shape(step, start)[-1]
        changed = said.outcome.changed
        carried = [i for i in changed if i not in set(self._scanned) and i not in set(self._round)]
        carried += [i for i, axis in enumerate(axes) if axis is Carry and i not in {*carried, *self._round}]
        moving = [*self._round, *carried]
        stacked = [i for i in changed if i in set(self._scanned)]

        def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], Any]:
            now = list(values)
            for i, value in zip([*moving, *self._scanned], [*carry, *xs]):
                now[i] = value
            round_, outs, news, _ = step(now)
            new = dict(zip(changed, news))
            new.update(zip(self._round, round_))
            return [new.get(i, now[i]) for i in moving], (outs, [new[i] for i in stacked])

        body.__name__ = getattr(self._fn, "__name__", "scan")
        final, (outs, slices) = jax.lax.scan(body, [values[i] for i in moving], xs, **options)
        outs = [jax.tree.map(functools.partial(_from_front, axis=axis), x) for x, axis in zip(outs, said.axes)]
        new = dict(zip(moving, final))
        new.update({i: jax.tree.map(functools.partial(_from_front, axis=axes[i]), x) for i, x in zip(stacked, slices)})
        return self._finish(new, outs, said.outcome)

    def _step(self, values: list[Any]) -> Any:
        """One iteration: the carry, the other outputs, the new values of Variables, and what they are."""
        entered = self._taken.enter(values)
        out = self._fn(*entered.args)
        round_, rest, rest_axes = self._split(entered, out)

        def assign(definition: Any, paths: Any, leaves: Any) -> list[int]:
            nonlocal axes
            del paths
            axes = tuple(leaf_values((rest_axes,), definition, leaves, who="scan", what="out_axes"))
            return [0] * len(leaves)

        axes: tuple[Any, ...] = ()
        (arrays,), outcome = entered.leave(rest, assign=assign)
        n = len(outcome.places)
        return round_, arrays[:n], arrays[n:], _Said(outcome, axes)

    def _split(self, entered: Entered, out: Any) -> tuple[list[Any], Any, Any]:
        """The leaves of the carry, and the other outputs with their axes."""
        place, axes = self._carry_out, self._out_axes
        if place is None:
            return [], out, axes
        if place == -1:
            round_, rest, rest_axes = out, (), ()
        else:
            if not isinstance(out, (tuple, list)) or len(out) != len(axes):
                got = f"{len(out)} values" if isinstance(out, (tuple, list)) else f"a {type(out).__name__}"
                raise ValueError(f"nnx.scan: out_axes={axes} wants a tuple of {len(axes)} outputs, got {got}.")
            round_, rest = out[place], (*out[:place], *out[place + 1 :])
            rest_axes = (*axes[:place], *axes[place + 1 :])
        leaves = returned(entered, round_, self._taken, self._round, str(self._carry_name))
        return [raw(x) for x in leaves], rest, rest_axes

    def _finish(self, new: dict[int, Any], outs: list[Any], outcome: Outcome) -> Any:
        taken = self._taken
        leaves = list(taken.leaves)
        metadata = dict(zip(outcome.changed, outcome.metadata))
        only = Outcome(outcome.definition, outcome.places, (), (), ())
        rest, _ = output(((outs,), only))
        written = [i for i in new if i in outcome.changed]
        write([leaves[i] for i in written], [new[i] for i in written], [metadata.get(i) for i in written])
        if self._carry_out is None:
            return rest
        for i in self._round:
            if not isinstance(leaves[i], Variable):
                leaves[i] = new[i]
        whole = build(taken.structure.definition, leaves)
        carry = whole.values[whole.names.index(str(self._carry_name))]
        if self._carry_out == -1:
            return carry
        return (*rest[: self._carry_out], carry, *rest[self._carry_out :])


def _to_front(x: Any, axis: int) -> Any:
    return jnp.moveaxis(x, axis, 0) if axis != 0 else x


def _from_front(x: Any, axis: int) -> Any:
    return jnp.moveaxis(x, 0, axis) if axis != 0 else x


def _slice_of(x: Any) -> Any:
    """The type of one element along the first axis."""
    aval = jax.typeof(x)
    return jax.eval_shape(lambda y: jax.lax.index_in_dim(y, 0, keepdims=False), aval)
