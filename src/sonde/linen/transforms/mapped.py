"""`nn.vmap`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax

from sonde.linen.modules.attach import describe
from sonde.linen.sharding import meta
from sonde.linen.transforms.axes import Axes, common_size, group, split_streams
from sonde.linen.transforms.lift import Body, Bridge, Lifting, Methods, ignore_keywords, lift_with
from sonde.linen.variables.filters import first_match
from sonde.linen.variables.frozen_dict import FrozenDict
from sonde.linen.variables.scope import Scope


def vmap(
    target: Callable[..., Any],
    variable_axes: Mapping[Any, Any] = FrozenDict(),
    split_rngs: Mapping[Any, bool] = FrozenDict(),
    in_axes: Axes = 0,
    out_axes: Axes = 0,
    axis_size: int | None = None,
    axis_name: str | None = None,
    spmd_axis_name: Hashable | None = None,
    metadata_params: Mapping[Any, Any] = FrozenDict(),
    methods: Methods = None,
) -> Any:
    """A module class or function that runs once for every element of an axis.

    Args:
        target: The module class, or a function whose first argument is a module.
        variable_axes: For each collection the axis it is mapped over, or None if it is shared. Collections that are
            not named do not exist inside; values sown into them still arrive.
        split_rngs: For each random stream whether every element gets its own keys.
        in_axes: As in `jax.vmap`, for the arguments after the module.
        out_axes: As in `jax.vmap`.
        axis_size: The number of elements, if no argument determines it.
        axis_name: As in `jax.vmap`.
        spmd_axis_name: As in `jax.vmap`.
        metadata_params: Passed to boxes around variables that gain or lose an axis.
        methods: For a class, the methods to transform.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> Ensemble = nn.vmap(
        ...     nn.Dense, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=3
        ... )
        >>> variables = Ensemble(4).init(jax.random.key(0), jnp.ones(2))
        >>> variables["params"]["kernel"].shape
        (3, 2, 4)
    """
    return lift_with(_vmap, locals(), label="vmap")


def _vmap(
    bridge: Bridge,
    body: Body,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    variable_axes: Mapping[Any, Any],
    split_rngs: Mapping[Any, bool],
    in_axes: Axes,
    out_axes: Axes,
    axis_size: int | None,
    axis_name: str | None,
    spmd_axis_name: Hashable | None,
    metadata_params: Mapping[Any, Any],
) -> Any:
    ignore_keywords(kwargs, "vmap", bridge.module)
    by = group(variable_axes)

    # A sown value differs from element to element: only a collection with an output axis can hold it.
    def keeps_sown(scope: Scope, collection: str, name: str, grows: bool) -> bool:
        index = first_match(by.filters_out, collection)
        return index is not None and by.axes_out[index] is not None

    lifting = Lifting(
        bridge.scopes,
        "vmap",
        variables=by.filters_in,
        changes=by.filters_out,
        rngs=tuple(split_rngs),
        keeps_sown=keeps_sown,
    )
    # Inside, a variable has lost the mapped axis; the names of its axes must have lost it too, and get it back outside.
    variables = tuple(
        g if axis is None else meta.remove_axis(g, axis, metadata_params)
        for g, axis in zip(lifting.variables, by.axes_in)
    )
    # Asked of variables too: a module may be mapped over its parameters alone.
    size = common_size(
        (by.axes_in, in_axes),
        (variables, args),
        given=axis_size,
        what="batch axis sizes",
        where=f"nn.vmap of {describe(bridge.module)}",
        option="axis_size",
    )
    splits = tuple(split_rngs.values())
    mapped = jax.vmap(
        lambda variables, rngs, args: lifting.call(body, variables, rngs, *args),
        in_axes=(by.axes_in, tuple(0 if split else None for split in splits), in_axes),
        out_axes=(out_axes, by.axes_out),
        axis_name=axis_name,
        axis_size=size,
        spmd_axis_name=spmd_axis_name,
    )
    output, changes = mapped(variables, split_streams(lifting.rngs, splits, size), args)
    lifting.publish(
        tuple(g if axis is None else meta.add_axis(g, axis, metadata_params) for g, axis in zip(changes, by.axes_out))
    )
    return output
