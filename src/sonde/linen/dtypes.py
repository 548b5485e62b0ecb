"""Promotion of dtypes, in the form of `flax.linen`: each array is an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sonde import ops
from sonde.ops.dtypes import Dtype

canonicalize_dtype = ops.canonicalize_dtype


def promote_dtype(*args: Any, dtype: Dtype | None = None, inexact: bool = True) -> list[Any]:
    """Casts all arrays to one dtype: the one given, or one that can hold them all. None stays None.

    Example:
        >>> import jax.numpy as jnp
        >>> x, y = promote_dtype(jnp.float16(1), jnp.int32(2))
        >>> y.dtype
        dtype('float16')
    """
    return list(ops.promote_dtype(args, dtype=dtype, inexact=inexact))


def of_tuple(promote: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's `promote_dtype` field in the form that `sonde.ops` takes: arrays in one tuple."""
    if promote is promote_dtype:
        return ops.promote_dtype
    return lambda args, **options: tuple(promote(*args, **options))
