"""`fp32_max_grad`: a dtype of 32-bit floats whose gradients are combined by their maximum.

The scales and histories of 8-bit products travel as gradients (`ops/fp8.py`). If one of them is used twice, JAX adds
the gradients of the two uses, but the larger one is needed. Convert to this dtype before the uses, inside `jax.jit`,
and JAX takes the maximum instead.

Arrays of this dtype can be made from floats, converted back, and passed through transforms; they have no arithmetic.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.sharding import Sharding
from jax.typing import ArrayLike

from sonde import _jax


class _Scalar(jax.dtypes.extended):
    """The scalar type of the dtype."""


class _Rules:
    """The rules that JAX needs for the dtype."""

    allow_conversion = True

    @staticmethod
    def physical_element_aval(dtype: MaxGradient) -> jax.core.ShapedArray:
        return jax.core.ShapedArray((), dtype.floats)

    @staticmethod
    def tangent_dtype(dtype: MaxGradient) -> MaxGradient:
        return dtype

    @staticmethod
    def add(dtype: MaxGradient, x: jax.Array, y: jax.Array) -> Any:
        x, y = (jax.lax.convert_element_type(each, dtype.floats) for each in (x, y))
        return jax.lax.convert_element_type(jnp.maximum(x, y), dtype)

    @staticmethod
    def zero(dtype: MaxGradient) -> Any:
        return jax.lax.convert_element_type(jnp.zeros((), dtype.floats), dtype)

    @staticmethod
    def full(shape: tuple[int, ...], value: ArrayLike, dtype: MaxGradient) -> Any:
        return jax.lax.convert_element_type(jnp.full(shape, value, dtype.floats), dtype)

    @staticmethod
    def global_sharded_result_handler(aval: jax.core.ShapedArray, sharding: Sharding, committed: bool) -> Any:
        return _jax.result_of_extended_dtype(aval, sharding, committed)

    @staticmethod
    def physical_sharding(aval: jax.core.ShapedArray, sharding: Sharding) -> Any:
        return sharding

    @staticmethod
    def logical_sharding(*arguments: Any) -> Any:
        return arguments[-1]

    @staticmethod
    def check_replicated_trailing_dims(*arguments: Any) -> None:
        """Nothing to check: an element has no axes."""


@dataclasses.dataclass(frozen=True)
class MaxGradient(_jax.ExtendedDType):
    """The dtype: floats, combined by their maximum where JAX adds gradients."""

    floats: Any
    _rules: Any = _Rules
    type: Any = _Scalar

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.floats.itemsize

    @property
    def name(self) -> str:
        """`fp8_meta32`, as in Flax."""
        return f"fp8_meta{8 * self.itemsize}"

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


fp32_max_grad = MaxGradient(jnp.dtype("float32"))
fm32 = fp32_max_grad


def as_floats(x: jax.Array) -> Any:
    """An array as plain floats, whichever of the two dtypes it has."""
    return jax.lax.convert_element_type(x, x.dtype.floats) if isinstance(x.dtype, MaxGradient) else x


def as_dtype_of(x: jax.Array, like: jax.Array) -> Any:
    """Floats in the dtype that another array has."""
    return jax.lax.convert_element_type(x, like.dtype) if isinstance(like.dtype, MaxGradient) else x
