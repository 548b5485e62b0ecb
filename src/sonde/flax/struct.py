"""Immutable dataclasses that are pytrees, with the names of `flax.struct`.

A field is a child of the pytree, or with `field(pytree_node=False)` part of its structure.
`sonde.flax.serialization` knows every such class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self, TypeVar, dataclass_transform, overload

import jax

from sonde.flax import serialization

__all__ = ["PyTreeNode", "dataclass", "field"]

T = TypeVar("T", bound=type)
_MARK = "_sonde_dataclass"


def field(pytree_node: bool = True, *, metadata: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    """A field of a dataclass.

    Args:
        pytree_node: Whether it is a child of the pytree; otherwise part of the structure, which must be comparable.
        metadata: More metadata for the field.
        **kwargs: As for `dataclasses.field`.
    """
    return dataclasses.field(metadata={**(metadata or {}), "pytree_node": pytree_node}, **kwargs)


@overload
def dataclass(clz: T, **kwargs: Any) -> T: ...


@overload
def dataclass(clz: None = None, **kwargs: Any) -> Callable[[T], T]: ...


@dataclass_transform(field_specifiers=(field,))
def dataclass(clz: type | None = None, **kwargs: Any) -> Any:
    """Makes a class an immutable dataclass and a pytree, with a method `replace`.

    Args:
        clz: The class; without it, returns a decorator.
        **kwargs: As for `dataclasses.dataclass`.

    Example:
        >>> import jax
        >>> from sonde.flax import struct
        >>> @struct.dataclass
        ... class State:
        ...     count: int
        ...     name: str = struct.field(pytree_node=False, default="run")
        >>> state = jax.tree.map(lambda x: x + 1, State(1))
        >>> state.replace(name="other")
        State(count=2, name='other')
    """
    if clz is None:
        return lambda cls: dataclass(cls, **kwargs)
    if _MARK in vars(clz):
        return clz
    cls: Any = dataclasses.dataclass(**{"frozen": True, **kwargs})(clz)
    names = {True: [], False: []}
    for f in dataclasses.fields(cls):
        if f.init:
            names[f.metadata.get("pytree_node", True)].append(f.name)
    if "replace" not in vars(clz):
        cls.replace = _replace
    jax.tree_util.register_dataclass(cls, data_fields=names[True], meta_fields=names[False])
    serialization.register_serialization_state(
        cls,
        lambda node: {name: serialization.to_state_dict(getattr(node, name)) for name in names[True]},
        lambda node, state: dataclasses.replace(node, **serialization.restore_fields(node, names[True], state)),
    )
    setattr(cls, _MARK, True)
    return cls


def _replace(self: Any, **updates: Any) -> Any:
    """A copy with some fields replaced."""
    return dataclasses.replace(self, **updates)


@dataclass_transform(field_specifiers=(field,))
class PyTreeNode:
    """A base class: its subclasses are dataclasses and pytrees, as `dataclass` makes them.

    Example:
        >>> from sonde.flax import struct
        >>> class Point(struct.PyTreeNode):
        ...     x: float
        ...     y: float
        >>> Point(1.0, 2.0).replace(y=3.0)
        Point(x=1.0, y=3.0)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__()
        dataclass(cls, **kwargs)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("struct.PyTreeNode is a base class: derive a class with fields from it.")

    def replace(self, **updates: Any) -> Self:
        """A copy with some fields replaced."""
        return dataclasses.replace(self, **updates)  # type: ignore[type-var]
