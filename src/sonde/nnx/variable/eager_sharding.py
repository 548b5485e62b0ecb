"""Placing the value of a new Variable on a mesh, as its `out_sharding` metadata says.

`out_sharding` names one mesh axis (or several, or None) per dimension. Names that are not axes of the mesh may be
logical ones: rules map them to mesh axes, either the Variable's own `sharding_rules` or those of `logical_axis_rules`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import jax
from jax.experimental.layout import Format
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

from sonde import _jax
from sonde.flax.flags import flag
from sonde.nnx.settings import Setting, SettingChange

T = TypeVar("T")

Rules = Sequence[tuple[str, str | tuple[str, ...] | None]]
AxisNames = Sharding | Format | PartitionSpec | Sequence[str | Sequence[str] | None] | str | None
"""How an array is sharded: a name for each dimension, or what these names come to."""
_local = threading.local()
_eager: Setting[bool] = Setting(lambda: flag("flax_always_shard_variable"))


def using_eager_sharding() -> bool:
    """Whether new Variables place their value as their `out_sharding` says."""
    return _eager.current


class use_eager_sharding(SettingChange[bool]):
    """Turns placing on or off: permanently when called, for a block when used with `with`."""

    def __init__(self, value: bool, /):
        super().__init__(_eager, value)

    @classmethod
    def current_value(cls) -> bool:
        """The same as `using_eager_sharding()`."""
        return using_eager_sharding()

    def __enter__(self) -> use_eager_sharding:
        super().__enter__()
        return self


def current_rules() -> Rules:
    """The rules of the innermost `logical_axis_rules` block."""
    return getattr(_local, "rules", ())


@contextlib.contextmanager
def logical_axis_rules(rules: Rules) -> Iterator[None]:
    """Within the block, logical axis names mean the mesh axes that `rules` gives.

    Args:
        rules: Pairs of a logical name and a mesh axis, several mesh axes, or None for "not sharded".
    """
    before = current_rules()
    _local.rules = tuple(rules)
    try:
        yield
    finally:
        _local.rules = before


def partition_spec(out_sharding: AxisNames, rules: Rules | None = None) -> PartitionSpec:
    """The PartitionSpec that an `out_sharding` entry means."""
    if isinstance(out_sharding, Format):
        out_sharding = getattr(out_sharding.sharding, "spec", None)
    if isinstance(out_sharding, PartitionSpec):
        names: tuple[Any, ...] = tuple(out_sharding)
    elif out_sharding is None or isinstance(out_sharding, str):
        return PartitionSpec()
    else:
        names = tuple(cast(Sequence[Any], out_sharding))
    # The first rule for a name wins, so the rules go into the dict from last to first.
    table = dict(reversed((*(rules or ()), *current_rules())))
    return PartitionSpec(*(_physical(name, table) for name in names))


def _physical(name: str | Sequence[str] | None, table: dict[str, Any]) -> Any:
    if isinstance(name, (tuple, list)):
        return tuple(_physical(n, table) for n in name)
    return table.get(name, name) if isinstance(name, str) else name


def place(
    value: T, out_sharding: AxisNames, *, mesh: Mesh | AbstractMesh | None = None, rules: Rules | None = None
) -> T:
    """Places every array in `value` as `out_sharding` says.

    Raises:
        ValueError: No mesh is given, and none is set.
    """
    if isinstance(out_sharding, (Sharding, Format)):
        return _constrain(value, out_sharding)
    spec = partition_spec(out_sharding, rules)
    mesh = mesh or _jax.ambient_mesh()
    if mesh is None:
        raise ValueError(
            f"A Variable with out_sharding={out_sharding} needs a mesh, and none is set. Make it inside "
            f"`with jax.set_mesh(mesh):`, give it mesh=..., or pass eager_sharding=False to place it later."
        )
    return _constrain(value, NamedSharding(mesh, spec))


def _constrain(value: T, sharding: Sharding | Format) -> T:
    """Places every array in `value` by a sharding, or by a Format (a sharding with a layout in memory)."""

    def one(x: object) -> Any:
        if isinstance(x, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        if not isinstance(x, jax.Array):
            return x
        mesh = getattr(sharding, "mesh", None)
        # On explicit axes the sharding is part of the array's type, which a constraint does not change.
        if mesh is not None and getattr(mesh, "are_all_axes_explicit", False):
            return jax.sharding.reshard(x, sharding)
        return jax.lax.with_sharding_constraint(x, sharding)

    return jax.tree.map(one, value)


def place_value(value: T, metadata: Mapping[str, Any]) -> T:
    """Places a value on the devices that its metadata gives."""
    if not metadata["eager_sharding"] or metadata["out_sharding"] is None:
        return value
    return place(value, metadata["out_sharding"], mesh=metadata.get("mesh"), rules=metadata.get("sharding_rules"))
