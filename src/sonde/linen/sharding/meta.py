"""Values in boxes: a variable together with metadata of its axes, such as how they are sharded.

A box is made by the initializer (`with_partitioning`), stays in the variables that `init` returns, and is opened when a
module reads the variable. Transforms that add or remove an axis (`nn.vmap`, `nn.scan`) update the box.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sonde.errors import PartitioningUnspecifiedError
from sonde.flax import serialization

A = TypeVar("A")
PARTITION_NAME = "partition_name"
_NAMES_IN_NNX = {"names": "out_sharding", "rules": "sharding_rules"}
Names = tuple[str | None, ...]


class AxisMetadata(Generic[A], abc.ABC):
    """A box. Subclasses are pytrees whose leaves are those of the value.

    Any class with these four methods counts as a subclass, for instance Flax's boxes.
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        if cls is not AxisMetadata:
            return NotImplemented
        return all(hasattr(other, name) for name in cls.__abstractmethods__) or NotImplemented

    @abc.abstractmethod
    def unbox(self) -> A:
        """The value."""

    @abc.abstractmethod
    def replace_boxed(self, val: Any) -> AxisMetadata[Any]:
        """The same box around another value."""

    @abc.abstractmethod
    def add_axis(self, index: int, params: Mapping[Any, Any]) -> Self:
        """The box after a transform has inserted an axis at `index`; `params` are the transform's `metadata_params`."""

    @abc.abstractmethod
    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> Self:
        """The box after a transform has removed the axis at `index`."""


def is_box(value: object) -> bool:
    """Whether a value is in a box."""
    return isinstance(value, AxisMetadata)


def map_axis_meta(fn: Callable[[AxisMetadata[Any]], Any], tree: object) -> Any:
    """Applies a function to every box in a tree and leaves everything else alone."""
    return jax.tree.map(lambda x: fn(x) if is_box(x) else x, tree, is_leaf=is_box)


def add_axis(tree: object, index: int, params: Mapping[Any, Any]) -> Any:
    """Updates every box in a tree for an inserted axis."""
    return map_axis_meta(lambda box: box.add_axis(index, params), tree)


def remove_axis(tree: object, index: int, params: Mapping[Any, Any]) -> Any:
    """Updates every box in a tree for a removed axis."""
    return map_axis_meta(lambda box: box.remove_axis(index, params), tree)


def unbox(tree: object) -> Any:
    """A tree with every box replaced by its value.

    Example:
        >>> unbox({"kernel": Partitioned(1.0, names=("model",))})
        {'kernel': 1.0}
    """
    return map_axis_meta(lambda box: unbox(box.unbox()), tree)


def replace_boxed(tree: Any, updates: Any) -> Any:
    """The tree `updates`, with each value in the box that `tree` has at the same path, if any."""

    def put_in(old: Any, new: Any) -> Any:
        return old.replace_boxed(replace_boxed(old.unbox(), new)) if is_box(old) else new

    return jax.tree.map(put_in, tree, updates, is_leaf=is_box)


def boxed_like(tree: object, updates: object) -> Any:
    """As `replace_boxed`, but a tree without boxes may have any form; the updates are then returned as they are."""
    has_boxes = any(map(is_box, jax.tree.leaves(tree, is_leaf=is_box)))
    return replace_boxed(tree, updates) if has_boxes else updates


def boxing(fn: Callable[..., Any], box: Callable[[Any], AxisMetadata[Any]]) -> Callable[..., Any]:
    """An initializer that puts the value of `fn` into a box."""

    @functools.wraps(fn)
    def initializer(*args: Any, **kwargs: Any) -> AxisMetadata[Any]:
        serialization.tell_flax()  # Flax may have been loaded since, and must know boxes to serialize them
        return box(fn(*args, **kwargs))

    return initializer


def names_in_nnx(box: Any) -> dict[str, str]:
    """The fields of a box or of a class of boxes, each with the name that `nnx.Variable` has for it."""
    return {field.name: _NAMES_IN_NNX.get(field.name, field.name) for field in dataclasses.fields(box)}


def mesh_is_set() -> bool:
    """Whether the program runs under a mesh."""
    return not jax.sharding.get_abstract_mesh().empty


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class Partitioned(AxisMetadata[A]):
    """A value whose axes are named after the axes of a mesh.

    Attributes:
        value: The value.
        names: For each axis the mesh axis it is sharded over, or None.
        mesh: The mesh; None means the one that is set when the value is read.

    Example:
        >>> tuple(Partitioned(1.0, names=("data", None)).get_partition_spec())
        ('data', None)
    """

    value: A
    names: Names
    mesh: Mesh | None = None

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def unbox(self, apply_constraint: bool = True) -> A:
        """The value, constrained to its sharding where there is a mesh."""
        if apply_constraint and self.mesh is not None:
            return jax.lax.with_sharding_constraint(self.value, self.get_sharding(self.mesh))
        if apply_constraint and mesh_is_set():
            return jax.lax.with_sharding_constraint(self.value, self.get_partition_spec())
        return self.value

    def replace_boxed(self, val: Any) -> Any:
        """The same names on another value."""
        return self.replace(value=val)

    def add_axis(self, index: int, params: Mapping[Any, Any]) -> Self:
        """Puts the axis name given in `metadata_params` into the names."""
        names = [*self.names, *[None] * (index - len(self.names))]
        return self.replace(names=(*names[:index], self._name_of_new_axis(params), *names[index:]))

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> Self:
        """Takes the axis name given in `metadata_params` out of the names."""
        expected = self._name_of_new_axis(params)
        if self.names[index] != expected:
            raise ValueError(
                f"the transform maps axis {index}, which metadata_params call {expected!r}, but the variable's axes "
                f"are {self.names}: pass the name that the variable was made with"
            )
        axis = index % len(self.names)
        return self.replace(names=(*self.names[:axis], *self.names[axis + 1 :]))

    def _name_of_new_axis(self, params: Mapping[Any, Any]) -> str | None:
        if PARTITION_NAME not in params:
            raise PartitioningUnspecifiedError(
                f"a transform maps a variable partitioned as {self.names} over a new axis, whose name is unknown: "
                "pass metadata_params={nn.PARTITION_NAME: 'name of the mesh axis, or None'}"
            )
        return params[PARTITION_NAME]

    def get_partition_spec(self) -> PartitionSpec:
        """The names as a PartitionSpec."""
        return PartitionSpec(*self.names)

    def get_sharding(self, mesh: Mesh) -> NamedSharding:
        """The sharding of the value on a mesh."""
        return NamedSharding(mesh, self.get_partition_spec())

    def to_nnx_metadata(self) -> dict[str, Any]:
        """The value and the other fields under the names that `nnx.Variable` has for them."""
        return {name: getattr(self, field) for field, name in names_in_nnx(self).items()}

    @classmethod
    def from_nnx_metadata(cls, metadata: Mapping[str, Any]) -> Self:
        """The inverse of `to_nnx_metadata`; entries that are no fields are left out."""
        return cls(**{field: metadata[name] for field, name in names_in_nnx(cls).items() if name in metadata})

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """The value is the only child, the rest is structure."""
        metadata = tuple((f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "value")
        return ((jax.tree_util.GetAttrKey("value"), self.value),), metadata

    @classmethod
    def tree_unflatten(cls, metadata: Any, leaves: Any) -> Any:
        """The inverse of `tree_flatten_with_keys`."""
        return cls(leaves[0], **dict(metadata))


serialization.register_box(Partitioned)


def with_partitioning(fn: Callable[..., Any], names: Names, mesh: Mesh | None = None) -> Callable[..., Any]:
    """An initializer that puts the value of `fn` into a `Partitioned` box.

    Example:
        >>> from sonde import linen as nn
        >>> init = nn.with_partitioning(nn.initializers.zeros, ("data", "model"))
        >>> init(jax.random.key(0), (2, 2)).names
        ('data', 'model')
    """
    return boxing(fn, lambda value: Partitioned(value, names, mesh=mesh))


def _leaf_spec(x: Any) -> PartitionSpec | None:
    if hasattr(x, "get_partition_spec"):
        return x.get_partition_spec()
    return PartitionSpec() if hasattr(x, "shape") else None


def get_partition_spec(tree: object) -> Any:
    """A tree of PartitionSpecs: of the boxes where there are any, empty for other arrays, None for other leaves."""
    return jax.tree.map(_leaf_spec, tree, is_leaf=is_box)


def get_sharding(tree: object, mesh: Mesh) -> Any:
    """A tree of shardings on a mesh, made from the PartitionSpecs."""

    def sharding(x: object) -> Any:
        of_box = getattr(x, "get_sharding", None)
        spec = None if of_box else _leaf_spec(x)
        return of_box(mesh) if of_box else None if spec is None else NamedSharding(mesh, spec)

    return jax.tree.map(sharding, tree, is_leaf=is_box)
