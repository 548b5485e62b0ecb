"""`nnx.vmap` and `nnx.pmap`: a function over an additional axis of arrays, Variables and Modules.

A Variable that is mapped over comes back mapped, along the same axis; one that is broadcast (axis None) may be changed
only to a value that is the same for all elements.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import jax

from sonde.nnx.transforms.axis_metadata import with_axis_names
from sonde.nnx.transforms.bounded_cache import PROGRAMS, Recent
from sonde.nnx.transforms.lifting import Entered, Taken, enter, take
from sonde.nnx.transforms.options import (
    MISSING,
    also_decorator,
    as_indices,
    named_after,
    named_like,
    with_axes,
)
from sonde.nnx.transforms.outcome import PureResult
from sonde.nnx.transforms.prefixes import Prefix, prepare
from sonde.nnx.transforms.result_lists import Lists, with_keywords


@also_decorator
def vmap(
    f: Callable[..., Any] = MISSING,
    *,
    in_axes: Prefix = 0,
    out_axes: Prefix = 0,
    axis_name: Hashable | None = None,
    axis_size: int | None = None,
    spmd_axis_name: Hashable | None = None,
    transform_metadata: Mapping[str, Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.vmap` for functions of Modules and Variables.

    Args:
        f: The function; leave it out to use `vmap` as a decorator with options.
        in_axes: The mapped axis of each argument: an int, None for "the same for all", `StateAxes` for the Variables of
            a Module, what `nnx.prefix` returns, or containers of these. Keyword arguments without a place in it are
            mapped along axis 0.
        out_axes: Where the mapped axis is in the output; the same forms.
        axis_name: A name for collectives.
        axis_size: The size of the axis, if no argument is mapped.
        spmd_axis_name: See `jax.vmap`.
        transform_metadata: `{nnx.PARTITION_NAME: name}` names the axis in the sharding metadata of Variables, see
            `nnx.transform_metadata`; other keys name it in other metadata.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.

    Raises:
        ValueError: The axes do not fit the arguments, or `graph` is False and a Variable occurs twice.

    Example:
        >>> from sonde import nnx
        >>> import jax.numpy as jnp
        >>> count = nnx.Variable(jnp.zeros(3))
        >>> def step(count, x):
        ...     count[...] += x
        ...     return count * 2
        >>> nnx.vmap(step, in_axes=(0, None))(count, 1.0)
        Array([2., 2., 2.], dtype=float32)
        >>> count.sum()
        Array(3., dtype=float32)
    """
    run_mode = prepare("vmap", f, graph, graph_updates, in_axes=in_axes, out_axes=out_axes)
    fn = with_axis_names(f, in_axes, out_axes, transform_metadata, run_mode.graph)

    @named_like(f)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = with_axes(f, args, kwargs, in_axes)
        taken = take("vmap", run_mode, args, kwargs)
        lists = _lists("vmap", taken, in_axes, out_axes)
        axes = lists.in_values
        inside: list[Entered] = []

        def pure(*values: Any) -> PureResult:
            entered = taken.enter(values[: len(axes)])
            inside[:] = [entered]
            return entered.leave(fn(*entered.args, **entered.kwargs), placement=lists)

        run = jax.vmap(
            named_after(f, pure),
            in_axes=tuple(axes) or 0,
            out_axes=(tuple(lists.kinds), 0),
            axis_name=axis_name,
            axis_size=axis_size,
            spmd_axis_name=spmd_axis_name,
        )
        try:
            # jax.vmap needs an argument, even if the size of the axis is given
            outcome = run(*taken.values) if taken.values else run(jax.numpy.zeros(axis_size or 0))
        # JAX knows only positions in our lists of results; the user needs the path in the model.
        except ValueError as error:
            place = _OUT_AXES.search(str(error))
            if place is None or not inside:
                raise
            path = inside[0].path_in_list(int(place[1]), int(place[2]))
            raise ValueError(
                f"nnx.vmap of {pure.__name__!r}: the new value of {path} differs from example to example, "
                f"but it has no mapped axis to be in ({place[3].lstrip(', ')}). Give it one with nnx.StateAxes; for "
                "values that a Module sows, nnx.capture needs none."
            ) from error
        return taken.settle(outcome)

    return mapped


#: How JAX names an output with a wrong axis: the list and the position in it.
_OUT_AXES = re.compile(r"out_axes\[0\]\[(\d+)\]\[(\d+)\][^,]*(, got axis spec .*)")


def _lists(verb: str, taken: Taken, in_axes: Prefix, out_axes: Prefix) -> Lists:
    axes = with_keywords(taken.structure, in_axes, 0)
    return Lists(verb, taken.structure, taken.leaves, arguments=("in_axes", axes), output=("out_axes", out_axes))


@also_decorator
def pmap(
    f: Callable[..., Any] = MISSING,
    *,
    axis_name: Hashable | None = None,
    in_axes: Prefix = 0,
    out_axes: Prefix = 0,
    static_broadcasted_argnums: int | Iterable[int] = (),
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Iterable[int] = (),
    transform_metadata: Mapping[str, Any] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.pmap` for functions of Modules and Variables; see `nnx.vmap` for the axes.

    Args:
        f: The function; leave it out to use `pmap` as a decorator with options.
        axis_name: A name for collectives.
        in_axes: The mapped axis of each argument.
        out_axes: Where the mapped axis is in the output.
        static_broadcasted_argnums: Positions of arguments that are compile-time constants.
        devices: The devices to run on.
        backend: The backend to run on.
        axis_size: The size of the axis.
        donate_argnums: Positions of arguments whose arrays may be reused. Variables among them get a new value.
        transform_metadata: `{nnx.PARTITION_NAME: name}`, see `nnx.vmap`.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.
    """
    run_mode = prepare("pmap", f, graph, graph_updates, in_axes=in_axes, out_axes=out_axes)
    fn = with_axis_names(f, in_axes, out_axes, transform_metadata, run_mode.graph)
    static = static_broadcasted_argnums
    static = static if isinstance(static, int) else tuple(static)
    donated = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums)
    programs: Recent[Any] = Recent(PROGRAMS)

    def program(taken: Taken) -> Any:
        structure = taken.structure  # keep only this: the rest belongs to the caller
        lists = _lists("pmap", taken, in_axes, out_axes)
        gone = {structure.names[i] for i in as_indices(donated, structure.n_args)}
        donated_leaves = [i for i, path in enumerate(structure.paths) if path[0] in gone]

        def pure(*values: Any) -> PureResult:
            entered = enter(structure, values, verb="pmap", mode=run_mode)
            return entered.leave(fn(*entered.args, **entered.kwargs), placement=lists)

        return jax.pmap(
            named_after(f, pure),
            axis_name=axis_name,
            in_axes=tuple(lists.in_values),
            out_axes=(tuple(lists.kinds), 0),
            devices=devices,
            backend=backend,
            axis_size=axis_size,
            donate_argnums=tuple(donated_leaves),
        )

    @named_like(f)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = with_axes(f, args, kwargs, in_axes)
        taken = take("pmap", run_mode, args, kwargs, static=static)
        run = programs.get(taken.structure, lambda: program(taken))
        return taken.settle(run(*taken.values))

    return mapped
