"""`nnx.transform_metadata`: names of axes in the sharding metadata of Variables, kept right across `vmap` and `scan`.

A transform that maps over an axis changes the rank of every Variable; their `out_sharding` has one name per dimension.
This transform takes the name of the mapped axis out on the way in, and puts it back on the way out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sonde.nnx._walk import walk
from sonde.nnx.sharding import PARTITION_NAME, add_axis, remove_axis
from sonde.nnx.transforms._lifting import Call, take
from sonde.nnx.transforms._options import MISSING, mode, named_like, positional
from sonde.nnx.transforms._prefixes import leaf_values
from sonde.nnx.variable import Variable


def transform_metadata(
    f: Callable[..., Any] = MISSING,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    partition: str | None,
    graph: bool | None = None,
) -> Any:
    """Keeps the axis names of Variables right around a transform that maps over an axis.

    Put it inside: `nnx.vmap(nnx.transform_metadata(f, in_axes=..., out_axes=..., partition="layers"), ...)`, with the
    same axes.

    Args:
        f: the function; leave it out to use `transform_metadata` as a decorator with options.
        in_axes: the mapped axis of each argument.
        out_axes: where the mapped axis is in the output.
        partition: the name of the axis.
        graph: True allows shared references, False demands trees. None: the current mode.

    Example:
        >>> from sonde import nnx
        >>> import jax, jax.numpy as jnp
        >>> def make(x):
        ...     return nnx.Param(x, out_sharding=("features",), eager_sharding=False)
        >>> stack = jax.vmap(nnx.transform_metadata(make, partition="layers"))
        >>> stack(jnp.ones((4, 2))).out_sharding
        ('layers', 'features')
    """
    graph = mode("transform_metadata", graph, None)
    if f is MISSING:
        return functools.partial(
            transform_metadata, in_axes=in_axes, out_axes=out_axes, partition=partition, graph=graph
        )
    who, name = "transform_metadata", {PARTITION_NAME: partition}

    @named_like(f)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        args = positional(f, args, kwargs)
        taken = take(who, graph, args)
        axes = leaf_values(in_axes, taken.structure.definition, taken.leaves, who=who, what="in_axes")
        entered = taken.enter(taken.values)
        inner = [(v, axis) for v, axis in zip(entered.leaves, axes) if isinstance(v, Variable) and axis is not None]
        for variable, axis in inner:
            if isinstance(axis, int):
                remove_axis(variable, axis, name)
        out = f(*entered.args)
        found = walk(Call(("out",), (out,)), graph=graph, who=who, numbers=True)
        entered.check_output(found)
        for variable, axis in inner:
            if isinstance(axis, int):
                add_axis(variable, axis, name)
        made = leaf_values((out_axes,), found.definition, found.leaves, who=who, what="out_axes")
        for variable, axis in zip(found.leaves, made):
            if isinstance(variable, Variable) and isinstance(axis, int):
                add_axis(variable, axis, name)
        taken.settle(entered.leave(None))
        return out

    return renamed
