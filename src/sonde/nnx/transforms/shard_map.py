"""`nnx.shard_map`: a function over shards of arrays, Variables and Modules."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh
from jax.sharding import PartitionSpec as P

from sonde.nnx.transforms.lifting import take
from sonde.nnx.transforms.options import MISSING, also_decorator, named_like, positional
from sonde.nnx.transforms.prefixes import Prefix, prepare
from sonde.nnx.transforms.result_lists import Lists


@also_decorator
def shard_map(
    f: Callable[..., Any] = MISSING,
    *,
    mesh: Mesh | AbstractMesh,
    in_specs: Prefix,
    out_specs: Prefix,
    axis_names: Set[Any] = frozenset(),
    check_vma: bool = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """`jax.shard_map` for functions of Modules and Variables.

    Args:
        f: The function; leave it out to use `shard_map` as a decorator with options.
        mesh: The devices.
        in_specs: For each argument, how it is sharded: a PartitionSpec, `StateSharding` for the Variables of a Module,
            containers of these, or None for "not sharded". A Variable comes back sharded as it went in.
        out_specs: The same for the output.
        axis_names: The axes of the mesh that the function handles; all if empty.
        check_vma: See `jax.shard_map`.
        graph: True allows shared references, False demands trees. None: the current mode.
        graph_updates: Whether the function may change the structure of its arguments. None: the current setting.

    Raises:
        ValueError: The specs do not fit the arguments, or `graph` is False and a Variable occurs twice.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec as P
        >>> from sonde import nnx
        >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> double = nnx.shard_map(lambda w, x: w * x, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
        >>> double(nnx.Param(jnp.array(2.0)), jnp.arange(3.0))
        Array([0., 2., 4.], dtype=float32)
    """
    run_mode = prepare("shard_map", f, graph, graph_updates, in_specs=in_specs, out_specs=out_specs)

    @named_like(f)
    def sharded(*args: Any, **kwargs: Any) -> Any:
        taken = take("shard_map", run_mode, positional(f, args, kwargs))
        options = {"arguments": ("in_specs", in_specs), "output": ("out_specs", out_specs)}
        lists = Lists("shard_map", taken.structure, taken.leaves, **options)

        # as in Flax, Variables are sharded afterwards even if the function does not change them
        kinds = taken.structure.kinds
        placed = [i for i, kind in enumerate(kinds) if kind is not None] if run_mode.updates else []
        run = jax.shard_map(
            taken.pure(f, placement=lists, always=placed),
            mesh=mesh,
            in_specs=(list(map(_spec, lists.in_values)),),
            out_specs=(tuple(map(_spec, lists.kinds)), P()),
            axis_names=axis_names,
            check_vma=check_vma,
        )
        return taken.settle(run(taken.values))

    return sharded


def _spec(value: P | None) -> P:
    return P() if value is None else value
