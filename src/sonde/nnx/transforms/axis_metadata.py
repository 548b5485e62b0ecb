"""`nnx.transform_metadata`: names of axes in the sharding metadata of Variables, kept correct across `vmap` and `scan`.

A transform that maps over an axis changes the rank of every Variable; their `out_sharding` has one name per dimension.
This transform removes the name of the mapped axis before the function runs, and inserts it again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sonde.nnx.structure.mode import resolve
from sonde.nnx.transforms.leaf_values import leaf_values
from sonde.nnx.transforms.lifting import walk_call
from sonde.nnx.transforms.options import MISSING, also_decorator, named_like, positional
from sonde.nnx.transforms.prefixes import Prefix
from sonde.nnx.variable.sharding import PARTITION_NAME, add_axis, remove_axis
from sonde.nnx.variable.variable import Variable


@also_decorator
def transform_metadata(
    f: Callable[..., Any] = MISSING,
    *,
    in_axes: Prefix = 0,
    out_axes: Prefix = 0,
    partition: str | None,
    graph: bool | None = None,
) -> Any:
    """Keeps the axis names of Variables correct under a transform that maps over an axis.

    Put it inside the transform, with the same axes:
    `nnx.vmap(nnx.transform_metadata(f, in_axes=..., out_axes=..., partition="layers"), ...)`.

    Args:
        f: The function; leave it out to use `transform_metadata` as a decorator with options.
        in_axes: The mapped axis of each argument.
        out_axes: Where the mapped axis is in the output.
        partition: The name of the axis.
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
    graph = resolve(graph)
    return with_axis_names(f, in_axes, out_axes, {PARTITION_NAME: partition}, graph)


def with_axis_names(
    f: Callable[..., Any], in_axes: Prefix, out_axes: Prefix, names: Mapping[str, Any] | None, graph: bool
) -> Any:
    """`transform_metadata` with a name for each kind of metadata, see `nnx.sharding.add_axis`; `f` itself without."""
    if not names or PARTITION_NAME not in names:
        return f
    verb = "transform_metadata"

    def axes_of(values: Sequence[Any], prefix: Prefix, what: str) -> dict[int, tuple[Variable[Any], int]]:
        """The mapped Variables with their axes, by identity."""
        walked = walk_call(tuple(f"{what[:-5]}[{i}]" for i in range(len(values))), values, verb=verb, graph=graph)
        axes = leaf_values(prefix, walked.definition, walked.leaves, verb=verb, what=what)
        both = zip(walked.leaves, axes)
        return {id(v): (v, axis) for v, axis in both if isinstance(v, Variable) and isinstance(axis, int)}

    @named_like(f)
    def renamed(*args: Any, **kwargs: Any) -> Any:
        args = positional(f, args, kwargs)
        mapped = axes_of(args, in_axes, "in_axes")
        for variable, axis in mapped.values():
            remove_axis(variable, axis, names)
        try:
            out = f(*args)
            mapped = axes_of((out,), (out_axes,), "out_axes")
        finally:
            # look again: the function may have put new Variables into its arguments
            for variable, axis in {**mapped, **axes_of(args, in_axes, "in_axes")}.values():
                add_axis(variable, axis, names)
        return out

    return renamed
