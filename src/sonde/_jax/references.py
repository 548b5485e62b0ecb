"""Array references that act as arrays where an array is wanted: the leaves of Variables with `hijax=True`.

JAX looks up what it does with an argument by its class, and what a tracer can do by the class of its type, so there is
a subclass of each. Both leave reading and writing (`ref[...]`, `ref[...] = x`) to JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax._src import ad_util as _ad_util
from jax._src import core as _core
from jax._src import dtypes as _dtypes
from jax._src.interpreters import pxla as _pxla
from jax._src.numpy import array_methods as _array_methods
from jax._src.state.types import AbstractRef as _AbstractRef

__all__ = ["ArrayLikeRefType", "register_array_like_reference"]


class ArrayLikeRefType(_AbstractRef):
    """The type of a reference whose tracers have the operators, methods and properties of arrays."""

    __slots__ = ()
    __hash__ = _AbstractRef.__hash__

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and super().__eq__(other)

    def update(self, inner_aval: Any = None, memory_space: Any = None, kind: Any = None) -> ArrayLikeRefType:
        return _array_like(super().update(inner_aval, memory_space, kind))

    def to_tangent_aval(self) -> ArrayLikeRefType:
        return _array_like(super().to_tangent_aval())

    def to_ct_aval(self) -> ArrayLikeRefType:
        return _array_like(super().to_ct_aval())


def _array_like(kind: Any) -> ArrayLikeRefType:
    return ArrayLikeRefType(kind.inner_aval, kind.memory_space, kind.kind)


def _of_the_array(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda reference, *args, **kwargs: function(reference[...], *args, **kwargs)


def _attribute_of_the_array(name: str) -> Callable[[Any], Any]:
    return lambda reference: getattr(reference[...], name)


def _method_of_the_array(name: str) -> Callable[..., Any]:
    return lambda reference, *args, **kwargs: getattr(reference[...], name)(*args, **kwargs)


def _take_operations_of_arrays() -> None:
    for name, operator in _array_methods._array_operators.items():
        if name not in ("getitem", "setitem", "len"):  # these are JAX's own, on references
            setattr(ArrayLikeRefType, f"_{name}", staticmethod(_of_the_array(operator)))
    for name in _array_methods._array_methods:
        setattr(ArrayLikeRefType, name, _core.aval_method(_method_of_the_array(name)))
    for name in _array_methods._array_properties:
        setattr(ArrayLikeRefType, name, _core.aval_property(_attribute_of_the_array(name)))
    setattr(ArrayLikeRefType, "__jax_array__", _core.aval_method(lambda reference: reference[...]))  # noqa: B010


def register_array_like_reference(cls: type[jax.Ref]) -> None:
    """Makes JAX take objects of a subclass of `jax.Ref` as it takes `jax.Ref`."""
    _core.pytype_aval_mappings[cls] = lambda reference: reference._aval
    _dtypes.register_canonicalize_value_handler(cls, None)
    _pxla.shard_arg_handlers[cls] = _pxla.shard_arg_handlers[jax.Ref]


_take_operations_of_arrays()
for _table in (_core.shard_aval_handlers, _core.unshard_aval_handlers, _ad_util.aval_zeros_likers):
    _table[ArrayLikeRefType] = _table[_AbstractRef]
_map, _unmap = _core.aval_mapping_handlers[_AbstractRef]
_core.aval_mapping_handlers[ArrayLikeRefType] = (
    lambda *args: _array_like(_map(*args)),
    lambda *args: _array_like(_unmap(*args)),
)
