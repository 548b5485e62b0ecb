"""Variables of nnx as variables of linen, and back.

Linen keeps values by collection and path, possibly in boxes with metadata; nnx keeps Variables in attributes, whose
type gives the collection. `params/Dense_0/kernel` is the `Param` at `Dense_0["kernel"]`. Metadata is kept: a
`Partitioned` box is a Variable with `out_sharding`, a Variable with metadata is an `NNXMeta` box.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax

from sonde.flax.bridge.libraries import Library
from sonde.flax.release import follows
from sonde.flax.serialization import register_box
from sonde.linen.sharding import meta
from sonde.nnx.states import traversals
from sonde.nnx.variable import sharding as nnx_sharding
from sonde.nnx.variable import type_names
from sonde.nnx.variable.eager_sharding import partition_spec
from sonde.nnx.variable.variable import Variable

#: The metadata entry that holds the class of the box that a Variable came in.
BOX_TYPE = "linen_meta_type"


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class NNXMeta(meta.AxisMetadata[Any]):
    """The box in which linen keeps a Variable that has metadata.

    Attributes:
        var_type: The type of the Variable.
        value: Its value.
        metadata: Its metadata.
    """

    var_type: type[Variable[Any]]
    value: Any
    metadata: dict[str, Any]

    def replace(self, **changes: Any) -> NNXMeta:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def unbox(self) -> Any:
        """The value."""
        return self.value

    def replace_boxed(self, val: Any) -> NNXMeta:
        """The same metadata for another value."""
        return self.replace(value=val)

    def add_axis(self, index: int, params: Mapping[Any, Any]) -> NNXMeta:
        """Names the new axis in `out_sharding`, if the transform names it."""
        return self._axis_changed(nnx_sharding.add_axis, index, params)

    def remove_axis(self, index: int, params: Mapping[Any, Any]) -> NNXMeta:
        """Takes the axis out of `out_sharding`, if the transform names it."""
        return self._axis_changed(nnx_sharding.remove_axis, index, params)

    def _axis_changed(self, change: Callable[..., Any], index: int, params: Mapping[Any, Any]) -> NNXMeta:
        if nnx_sharding.PARTITION_NAME not in params:
            return self
        variable = change([self.to_nnx_variable()], index, params)[0]
        return self.replace(metadata=variable.get_metadata())

    def get_partition_spec(self) -> jax.sharding.PartitionSpec:
        """The `out_sharding`, after the rules for logical names."""
        return partition_spec(self.metadata.get("out_sharding"), self.metadata.get("sharding_rules"))

    def to_nnx_variable(self) -> Variable[Any]:
        """The Variable."""
        return self.var_type.from_metadata(self.value, self.metadata)

    def tree_flatten_with_keys(self) -> tuple[Any, Any]:
        """The value is the only child, the rest is structure."""
        return ((jax.tree_util.GetAttrKey("value"), self.value),), (self.var_type, tuple(self.metadata.items()))

    @classmethod
    def tree_unflatten(
        cls, rest: tuple[type[Variable[Any]], tuple[tuple[str, Any], ...]], leaves: Sequence[Any]
    ) -> NNXMeta:
        """The inverse of `tree_flatten_with_keys`."""
        return cls(rest[0], leaves[0], dict(rest[1]))


register_box(NNXMeta)


def with_partitioning(
    initializer: Callable[..., Any], names: meta.Names, mesh: jax.sharding.Mesh | None = None
) -> Callable[..., Any]:
    """An initializer whose value comes in linen's `Partitioned` box, like linen's function of that name."""
    return meta.with_partitioning(initializer, names, mesh)


# --------------------------------------------------------------------------------------------------------------------
# One value
# --------------------------------------------------------------------------------------------------------------------


def _is_box(value: object) -> bool:
    return hasattr(value, "unbox") and hasattr(value, "replace_boxed")


def to_nnx_var(collection: str, value: Any, nnx: ModuleType) -> Any:
    """The Variable for a value of a collection.

    Args:
        collection: The collection.
        value: The value, or a box with one.
        nnx: The face that the Variable is for, of Sonde or of Flax.
    """
    if hasattr(value, "to_nnx_variable"):
        variable = value.to_nnx_variable()
        return variable if isinstance(variable, nnx.Variable) else translated(variable, nnx)
    kind = nnx.variable_type_from_name(collection, allow_register=True)
    if not _is_box(value):
        return kind(value)
    metadata = {name: getattr(value, field) for field, name in meta.names_in_nnx(value).items() if field != "value"}
    return kind(value.value, **metadata, **{BOX_TYPE: type(value)})


def to_linen_var(variable: Variable[Any]) -> Any:
    """The value of a Variable, in a box if it has metadata."""
    metadata = variable.get_metadata()
    box = metadata.get(BOX_TYPE)
    if box is not None:
        fields = {field: name for field, name in meta.names_in_nnx(box).items() if field != "value"}
        own_fields = {field: metadata[name] for field, name in fields.items() if name in metadata}
        return box(variable.get_value(), **own_fields)
    own = {name: entry for name, entry in metadata.items() if name not in Variable.required_metadata}
    if not own:
        return variable.get_value()
    if follows(0, 12, 12):
        metadata = own
    if isinstance(variable, Variable):
        return NNXMeta(type(variable), variable.get_value(), metadata)
    from flax.nnx.bridge import NNXMeta as FlaxMeta

    return FlaxMeta(type(variable), variable.get_value(), metadata)


def translated(variable: Any, nnx: ModuleType) -> Any:
    """The same Variable in the other library: a type of the same name, and the same metadata."""
    kind = getattr(nnx, type(variable).__name__, None)
    if not (isinstance(kind, type) and issubclass(kind, nnx.Variable)):
        kind = nnx.variable_type_from_name(collection_of(variable), allow_register=True)
    return kind.from_metadata(variable.get_raw_value(), variable.get_metadata())


def collection_of(variable: Any) -> str:
    """The collection for a Variable of either library."""
    if isinstance(variable, Variable):
        return type_names.variable_name_from_type(type(variable), allow_register=True)
    from flax import nnx

    return nnx.variable_name_from_type(type(variable), allow_register=True)


# --------------------------------------------------------------------------------------------------------------------
# Nested dicts of them
# --------------------------------------------------------------------------------------------------------------------


def leaves_of(nested: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Pairs of path and value of a nested mapping; everything that is not a mapping is a value."""
    if not isinstance(nested, Mapping):
        yield path, nested
        return
    for key, value in nested.items():
        yield from leaves_of(value, (*path, key))


def put_at(nested: dict[Any, Any], path: tuple[Any, ...], value: object) -> None:
    """Sets a value in nested dicts, which are made where they are missing."""
    for key in path[:-1]:
        nested = nested.setdefault(key, {})
    nested[path[-1]] = value


def to_attributes(variables: Mapping[str, Any], nnx: ModuleType) -> dict[str, Any]:
    """Variables of linen as nested dicts of Variables, of all collections together.

    Raises:
        ValueError: Two collections have a value at the same path.
    """
    attributes: dict[str, Any] = {}
    owner: dict[tuple[Any, ...], str] = {}
    for collection, tree in variables.items():
        for path, value in leaves_of(tree):
            if path in owner:
                name = "/".join(map(str, path))
                raise ValueError(
                    f"The collections {owner[path]!r} and {collection!r} both have a value at {name}, but an nnx "
                    "Module has one attribute of that name. Rename one of them in the linen module."
                )
            owner[path] = collection
            put_at(attributes, path, to_nnx_var(collection, value, nnx))
    return _in_order(attributes)


def _in_order(nested: object) -> Any:
    """The same with sorted keys, as in states."""
    if not isinstance(nested, dict):
        return nested
    return {key: _in_order(nested[key]) for key in traversals.sorted_keys(nested)}


def to_collections(attributes: Mapping[str, Any], as_value: Callable[[Any], Any] = to_linen_var) -> dict[str, Any]:
    """Nested mappings of Variables as variables of linen, by collection."""
    variables: dict[str, Any] = {}
    for path, variable in leaves_of(attributes):
        put_at(variables, (collection_of(variable), *path), as_value(variable))
    return variables


def linen_vars_to_nnx_attrs(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of linen as nested dicts of nnx Variables, as in the attributes of `ToNNX`.

    Example:
        >>> from sonde.nnx.bridge.variables import linen_vars_to_nnx_attrs, nnx_attrs_to_linen_vars
        >>> attributes = linen_vars_to_nnx_attrs({"params": {"dense": {"bias": 1.0}}})
        >>> attributes["dense"]["bias"].get_value()
        1.0
        >>> nnx_attrs_to_linen_vars(attributes)
        {'params': {'dense': {'bias': 1.0}}}
    """
    from sonde import nnx

    return to_attributes(variables, nnx)


def nnx_attrs_to_linen_vars(nnx_attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse: nested dicts of nnx Variables as variables of linen, by collection."""
    return to_collections(nnx_attrs)


def sort_variable_types(types: Iterable[type]) -> list[type]:
    """Types of Variables, each before the types it derives from: the order that filters need."""
    return sorted(types, key=lambda kind: -len(kind.__mro__))


def is_vanilla_variable(variable: Variable[Any]) -> bool:
    """Whether a Variable has no metadata of its own."""
    return set(variable.get_metadata()) <= Variable.required_metadata


def state_without_keys(module: object, library: Library) -> Any:
    """The state of an nnx module, without its streams of random keys, as nested dicts of Variables."""
    nnx = library.nnx
    flat = nnx.to_flat_state(nnx.state(module))
    nested: dict[Any, Any] = {}
    for path, variable in flat:
        if isinstance(variable, nnx.Variable) and not isinstance(variable, nnx.RngState):
            put_at(nested, path, variable)
    return nested
