"""Partition specs and shardings of a model, from the metadata of its Variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

from sonde import _jax
from sonde.nnx.states.filters import PathParts
from sonde.nnx.structure.mapping import map as map_leaves
from sonde.nnx.variable.eager_sharding import partition_spec
from sonde.nnx.variable.metadata import with_metadata
from sonde.nnx.variable.variable import Variable

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])

#: The key under which transforms give the name of the axis that they add.
PARTITION_NAME = "partition_name"


def with_partitioning(initializer: F, sharding: tuple[Any, ...], mesh: Mesh | None = None, **metadata: Any) -> F:
    """Wraps an initializer so that the Variable that takes its value is sharded.

    Args:
        initializer: The initializer.
        sharding: The name of a mesh axis, several names, or None, per dimension.
        mesh: The mesh; the current mesh by default.
        **metadata: More metadata for the Variable.
    """
    return with_metadata(initializer, out_sharding=sharding, mesh=mesh, **metadata)


def spec_of(variable: Variable[Any]) -> PartitionSpec:
    """The PartitionSpec of a Variable."""
    out_sharding = variable.get_metadata("out_sharding", None)
    if isinstance(out_sharding, NamedSharding):
        return out_sharding.spec
    return partition_spec(out_sharding, variable.get_metadata("sharding_rules", None))


get_var_pspec = spec_of


def _over_variables(f: Callable[[Variable[Any]], Any], tree: object, otherwise: Callable[[Any], Any]) -> Any:
    def one(leaf: object) -> Any:
        return leaf.replace(f(leaf)) if isinstance(leaf, Variable) else otherwise(leaf)

    return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, Variable))


def get_partition_spec(tree: A) -> A:
    """A copy of a State or pytree with a PartitionSpec in place of every array."""
    return _over_variables(spec_of, tree, lambda leaf: PartitionSpec() if hasattr(leaf, "shape") else leaf)


def get_named_sharding(tree: A, mesh: Mesh) -> A:
    """A copy of a State or pytree with a NamedSharding on `mesh` in place of every array."""
    return jax.tree.map(
        lambda spec: NamedSharding(mesh, spec) if isinstance(spec, PartitionSpec) else spec,
        get_partition_spec(tree),
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def as_abstract(tree: A, graph: bool | None = None) -> A:
    """A copy of an abstract model in which every Variable with `out_sharding` has its sharding.

    Args:
        tree: A model whose Variables hold `jax.ShapeDtypeStruct`, as `nnx.eval_shape` returns it.
        graph: True allows shared references, False demands a tree. None: the current mode.
    """

    def one(path: PathParts, leaf: object) -> Any:
        del path
        if not isinstance(leaf, Variable):
            return leaf
        value, mesh = leaf.get_raw_value(), leaf.get_metadata("mesh", None) or _jax.ambient_mesh()
        if _is_abstract(getattr(value, "sharding", None)) and isinstance(mesh, Mesh):
            sharding = NamedSharding(mesh, value.sharding.spec)
            return leaf.replace(jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding))
        placed_shape = sharded_shape(leaf, mesh) if leaf.get_metadata("out_sharding", None) is not None else None
        return leaf if placed_shape is None else leaf.replace(placed_shape)

    return map_leaves(one, tree, graph=graph)


abstract_with_sharding = as_abstract


def sharded_shape(variable: Variable[Any], mesh: Mesh | AbstractMesh | None) -> jax.ShapeDtypeStruct | None:
    """The shape that an abstract Variable holds, with its sharding; None if it already has one, or no mesh is known.

    Args:
        variable: The Variable.
        mesh: The mesh, if the metadata of the Variable has none; None if there is no mesh.
    """
    value, sharding = variable.get_raw_value(), variable.get_metadata("out_sharding", None)
    mesh = variable.get_metadata("mesh", None) or mesh
    if not isinstance(value, jax.ShapeDtypeStruct) or value.sharding is not None:
        return None
    if not isinstance(sharding, Sharding):
        if mesh is None:
            return None
        sharding = NamedSharding(mesh, spec_of(variable))
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding, weak_type=value.weak_type)


def _is_abstract(sharding: Sharding | None) -> bool:
    return isinstance(sharding, NamedSharding) and not isinstance(sharding.mesh, Mesh)


def add_axis(tree: A, index: int, transform_metadata: Mapping[str, Any]) -> A:
    """Names a new axis in the metadata of all Variables of a pytree, in place, and runs their hooks.

    Args:
        tree: A State or pytree with Variables that a transform added an axis to.
        index: Where the axis is.
        transform_metadata: The name of the axis for `out_sharding`, under the key `PARTITION_NAME`; other keys are
            names of metadata entries, with the name of the axis for each.
    """

    def put_in(axes: list[Any], name: str | None) -> None:
        # Counted in the array that already has the new axis.
        at = index if index >= 0 else index + len(axes) + 1
        axes += [None] * (at - len(axes))
        axes.insert(at, name)

    for variable in _variables(tree):
        _change_axes(variable, transform_metadata, put_in)
        variable.add_axis(index, transform_metadata.get(PARTITION_NAME))
    return tree


def remove_axis(tree: A, index: int, transform_metadata: Mapping[str, Any]) -> A:
    """Takes an axis out of the metadata of all Variables of a pytree, in place, and runs their hooks; see `add_axis`.

    Raises:
        ValueError: The axis at that index has another name.
    """

    def take_out(axes: list[Any], name: str | None) -> None:
        at = index if index >= 0 else index + len(axes)
        if at < len(axes) and axes[at] != name:
            raise ValueError(
                f"The axis {index} of a Variable with the axes {tuple(axes)} is named {axes[at]!r}, but the transform "
                f"calls it {name!r}."
            )
        if at < len(axes):
            del axes[at]

    for variable in _variables(tree):
        _change_axes(variable, transform_metadata, take_out)
        variable.remove_axis(index, transform_metadata.get(PARTITION_NAME))
    return tree


def _variables(tree: object) -> list[Variable[Any]]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Variable))
    return [leaf for leaf in leaves if isinstance(leaf, Variable)]


def _change_axes(variable: Variable[Any], names: Mapping[str, Any], change: Callable[[list[Any], Any], None]) -> None:
    for key, name in names.items():
        field = "out_sharding" if key == PARTITION_NAME else key
        axes_before: Any = variable.get_metadata(field, None)
        if isinstance(axes_before, (tuple, list, PartitionSpec)):
            axes = list(cast(Iterable[Any], axes_before))
            change(axes, name)
            variable.set_metadata(
                field, PartitionSpec(*axes) if isinstance(axes_before, PartitionSpec) else tuple(axes)
            )
