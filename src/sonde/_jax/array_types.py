"""Types of arrays: how mapping changes them, zeros of a type, and types that are not of numbers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax._src import core as _core
from jax._src import dtypes as _dtypes
from jax._src.interpreters import batching as _batching
from jax._src.lax import lax as _lax

from sonde._jax.imported import AxisData, Jaxpr, Literal, Var, typeof
from sonde._jax.meshes import explicit_sharding, varying_axes, varying_axes_of_type, varying_over

__all__ = [
    "is_array_type",
    "is_number_type",
    "mapped_jaxpr",
    "mapped_outputs",
    "mapped_type",
    "not_a_literal",
    "plain_type_of",
    "result_of_extended_dtype",
    "strongly_typed",
    "type_of",
    "typed_like",
    "zeros_of_type",
]


def type_of(value: Any) -> Any:
    """The type of an array, or of a variable in a jaxpr."""
    return value.aval if isinstance(value, (Var, Literal)) else typeof(value)


def mapped_type(aval: Any, size: int, dim: int) -> Any:
    """The type of one element along an axis."""
    return _core.mapped_aval(size, dim, aval)


def mapped_outputs(
    jaxpr: Jaxpr, axis_data: AxisData, mapped: Sequence[bool], instantiate: Sequence[bool] | bool
) -> list[bool]:
    """Which outputs of a jaxpr are mapped if these inputs are; `instantiate` says which always are."""
    instantiate = instantiate if isinstance(instantiate, bool) else list(instantiate)
    return list(_batching.batch_jaxpr(jaxpr, axis_data, list(mapped), instantiate)[1])


def mapped_jaxpr(jaxpr: Jaxpr, axis_data: AxisData, mapped: Sequence[bool]) -> Any:
    """A jaxpr with these inputs mapped along their first axis."""
    return _batching.batch_jaxpr(jaxpr, axis_data, list(mapped), False)[0]


def strongly_typed(value: Any) -> Any:
    """A value without a weak type, as the carry of a loop must be."""
    aval = typeof(value)
    return lax.convert_element_type(value, aval.dtype) if getattr(aval, "weak_type", False) else value


def plain_type_of(value: Any) -> Any:
    """The shape and dtype of an array as a type, without what it varies over and how it is laid out."""
    aval = typeof(value)
    return _plain_type(aval.shape, aval.dtype, getattr(aval, "weak_type", False))


@functools.lru_cache(maxsize=4096)
def _plain_type(shape: tuple[Any, ...], dtype: Any, weak_type: bool) -> Any:
    return _core.ShapedArray(shape, dtype, weak_type=weak_type)


def typed_like(value: Any, other: Any) -> Any:
    """An array with the weak type of another one, if it has one, that varies over the mesh as that one does."""
    weak, weak_wanted = (bool(getattr(typeof(x), "weak_type", False)) for x in (value, other))
    if weak != weak_wanted:
        value = _lax._convert_element_type(value, typeof(value).dtype, weak_type=weak_wanted)
    return varying_over(value, varying_axes(other))


def zeros_of_type(aval: Any) -> Any:
    """Zeros of an abstract value: keys become key arrays of zeros, varying axes are kept."""
    if _dtypes.issubdtype(aval.dtype, _dtypes.extended):
        like = jax.ShapeDtypeStruct(aval.shape, aval.dtype)
        data = jax.eval_shape(jax.random.key_data, like)
        zeros = jax.random.wrap_key_data(jax.numpy.zeros(data.shape, data.dtype), impl=aval.dtype._impl)
    else:
        zeros = jax.numpy.zeros(aval.shape, aval.dtype, out_sharding=explicit_sharding(aval))
    varying = varying_axes_of_type(aval)
    return lax.pcast(zeros, tuple(varying), to="varying") if varying else zeros


def result_of_extended_dtype(aval: Any, sharding: Any, committed: Any) -> Any:
    """Converts a compiled program's result to an array of an extended dtype that is stored as another dtype."""
    from jax._src import earray
    from jax._src.interpreters import pxla

    stored = pxla.global_result_handlers[_core.ShapedArray](_core.physical_aval(aval), sharding, committed)
    return stored.wrap(lambda array: earray.EArray(aval, array))


def not_a_literal(value: Any) -> Any:
    """A value as an array: when a jaxpr is evaluated, literals in it have a special type."""
    dtype = getattr(value, "dtype", None) if isinstance(value, (int, float, complex)) else None
    return value if dtype is None else np.asarray(value, dtype)


def is_array_type(aval: Any) -> bool:
    """Whether values of a type are arrays of numbers or keys, and not references or other objects."""
    return type(aval) is _core.ShapedArray


def is_number_type(dtype: Any) -> bool:
    """Whether JAX has arrays of a NumPy dtype (such as bfloat16)."""
    return _dtypes.issubdtype(dtype, np.number) or _dtypes.issubdtype(dtype, np.bool_)
