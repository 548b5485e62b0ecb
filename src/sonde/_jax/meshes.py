"""Values on a mesh: what `shard_map` takes and returns, varying axes, and shardings that are part of types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import lax
from jax._src import core as _core
from jax.sharding import AxisType

from sonde._jax.imported import Primitive, Trace, flattree, typeof

__all__ = [
    "ambient_mesh",
    "bind_shard_map",
    "explicit_sharding",
    "first_axis_like",
    "flat_tree",
    "in_one_piece",
    "in_pieces_like",
    "is_in_pieces",
    "is_on_explicit_mesh",
    "laid_out_as",
    "numbers_along",
    "on_mesh_around",
    "over_shards",
    "repeated_like",
    "spec_of_shard",
    "type_on_mesh_around",
    "varying_alike",
    "varying_axes",
    "varying_axes_of_type",
    "varying_over",
]


def bind_shard_map(primitive: Primitive, trace: Trace, fun: Callable, args: Sequence[Any], **params: Any) -> list[Any]:
    """Binds a shard_map of `fun` on `trace`."""
    params["subfuns"] = (fun,)
    names = params["debug_info"].arg_names
    if names is not None and len(names) != len(args):
        params["debug_info"] = params["debug_info"].with_unknown_names()
    avals = [typeof(x) for x in args]
    return primitive.bind_with_trace(trace, tuple(args), avals, params)


def over_shards(params: Mapping[str, Any], fun: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    """A function mapped over shards as the equation of a shard_map with these parameters maps its program."""
    return jax.shard_map(
        lambda *shards: tuple(fun(*shards)),
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=tuple(params["out_specs"]),
        axis_names=set(params["newly_manual_axes"]),
        check_vma=params["check_vma"],
    )


def flat_tree(values: Sequence[Any], aux: Any) -> Any:
    """The form in which the function inside a shard_map returns its outputs and their specs."""
    if flattree is not None:
        return flattree.flatten(list(values)).with_aux(aux)
    from jax._src.tree_util import FlatTree

    return FlatTree.flatten(list(values)).with_aux(aux)


def varying_axes(value: Any) -> frozenset[str]:
    """The mesh axes over which a value inside a shard_map varies."""
    return varying_axes_of_type(typeof(value))


def varying_axes_of_type(aval: Any) -> frozenset[str]:
    """The mesh axes over which values of a type vary."""
    return getattr(getattr(aval, "manual_axis_type", None), "varying", frozenset())


def varying_over(value: Any, axes: frozenset[str]) -> Any:
    """A value made to vary over these mesh axes too."""
    missing = tuple(axes - varying_axes(value))
    return lax.pcast(value, missing, to="varying") if missing else value


def varying_alike(*values: Any) -> list[Any]:
    """Values made to vary over the mesh axes over which any of them does."""
    axes = frozenset[str]().union(*map(varying_axes, values))
    return [varying_over(value, axes) for value in values]


def spec_of_shard(value: Any, *axes: Any) -> Any:
    """How a value inside a shard_map becomes a global array with these axes; sums that are not done yet stay so."""
    kind = getattr(typeof(value), "manual_axis_type", None)
    names = ("unreduced", "reduced", "unreduced_kind")
    return jax.P(*axes, **{name: names_of_kind for name in names if (names_of_kind := getattr(kind, name, None))})


def explicit_sharding(aval: Any) -> Any:
    """The sharding of a type on a mesh with explicit axes; None where JAX chooses shardings itself."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None or sharding.mesh.empty or AxisType.Explicit not in sharding.mesh.axis_types:
        return None
    return sharding


def numbers_along(value: Any, axis: int) -> Any:
    """A zero for every element along an axis of a value, sharded as that axis is."""
    sharding = explicit_sharding(typeof(value))
    if sharding is not None:
        sharding = jax.NamedSharding(sharding.mesh, jax.P(sharding.spec[axis]))
    return jax.numpy.zeros(value.shape[axis], "int32", out_sharding=sharding)


def is_on_explicit_mesh(value: Any) -> bool:
    """Whether the sharding of a value is part of its type."""
    return explicit_sharding(typeof(value)) is not None


def is_in_pieces(aval: Any) -> bool:
    """Whether values of a type are laid out over a mesh with explicit axes."""
    sharding = explicit_sharding(aval)
    return sharding is not None and any(names is not None for names in sharding.spec)


def in_one_piece(value: Any) -> Any:
    """A value that is not laid out over a mesh with explicit axes."""
    if not is_in_pieces(typeof(value)):
        return value
    return jax.sharding.reshard(value, jax.NamedSharding(typeof(value).sharding.mesh, jax.P()))


def in_pieces_like(value: Any, aval: Any, dim: int) -> Any:
    """A value whose elements along an axis are laid out as a type says."""
    if not is_in_pieces(aval):
        return value
    names = list(aval.sharding.spec)
    names.insert(dim, typeof(value).sharding.spec[dim])
    return jax.sharding.reshard(value, jax.NamedSharding(aval.sharding.mesh, jax.P(*names)))


def laid_out_as(value: Any, aval: Any) -> Any:
    """A value that varies over meshes, and is laid out over one with explicit axes, as a type says."""
    if is_in_pieces(aval) and explicit_sharding(typeof(value)) != aval.sharding:
        value = jax.sharding.reshard(value, jax.NamedSharding(aval.sharding.mesh, aval.sharding.spec))
    return varying_over(value, varying_axes_of_type(aval))


def on_mesh_around(value: Any) -> Any:
    """A value whose type names the program's mesh; the type of a constant made outside may lack it."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not typeof(value).sharding.mesh.empty:
        return value
    return jax.sharding.reshard(value, jax.NamedSharding(mesh, jax.P(*[None] * typeof(value).ndim)))


def type_on_mesh_around(aval: Any) -> Any:
    """The type that `on_mesh_around` gives a value of this type."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not aval.sharding.mesh.empty:
        return aval
    return aval.update(sharding=jax.NamedSharding(mesh, jax.P(*[None] * aval.ndim)))


def repeated_like(value: Any, other: Any) -> Any:
    """A value with one more axis in front, as long as the first axis of another value and sharded like it."""
    aval, spec = typeof(value), typeof(other).sharding.spec
    own = explicit_sharding(aval)
    sharding = jax.NamedSharding(
        typeof(other).sharding.mesh, jax.P(spec[0], *(own.spec if own else [None] * aval.ndim))
    )
    shape = (other.shape[0], *aval.shape)
    return lax.broadcast_in_dim(value, shape, range(1, len(shape)), out_sharding=sharding)


def first_axis_like(value: Any, other: Any) -> Any:
    """A value whose first axis is sharded like that of another, as `vmap` requires."""
    own_spec, spec = typeof(value).sharding.spec, typeof(other).sharding.spec
    if own_spec[0] == spec[0]:
        return value
    return jax.sharding.reshard(value, jax.NamedSharding(typeof(other).sharding.mesh, jax.P(spec[0], *own_spec[1:])))


def ambient_mesh() -> Any | None:
    """The mesh of the surrounding `jax.set_mesh` (concrete if possible) or `with mesh:`, or None."""
    mesh = jax.sharding.get_mesh() if _core.trace_ctx.is_top_level() else None
    if mesh is None or mesh.empty:
        mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        from jax._src import mesh as _mesh

        mesh = _mesh.thread_resources.env.physical_mesh
    return None if mesh.empty else mesh
