"""The dtype a layer computes in: given, or derived from its arrays.

Every layer has two dtypes. Parameters are stored in `param_dtype`. The arithmetic runs in `dtype`: when it is None, it
is the smallest dtype that holds inputs and parameters (`jnp.result_type`), raised to float32 when that would be an
integer.

Sharp edges:
- `promote_dtype` takes one tuple, as `flax.nnx` does. `flax.linen` takes the arrays one by one.
- An array that already has the right dtype is returned as the same object, so that no equation is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

Dtype = jax.typing.DTypeLike
"""Anything `jnp.dtype` understands."""

PromoteDtype = Callable[..., Any]
"""`promote(arrays, *, dtype=None) -> arrays`, as `promote_dtype` below."""

T = TypeVar("T", bound=tuple)


def canonicalize_dtype(*args: Any, dtype: Dtype | None = None, inexact: bool = True) -> Dtype:
    """The dtype that a computation on the given values runs in.

    Args:
        *args: Arrays or scalars; None is ignored.
        dtype: If given, the result; nothing is inferred.
        inexact: The result must be a floating or complex dtype. An inferred integer dtype becomes float32, a
            given one is an error.

    Returns:
        The dtype.

    Raises:
        ValueError: `dtype` is not inexact, but `inexact` is True.

    Example:
        >>> import jax.numpy as jnp
        >>> canonicalize_dtype(jnp.zeros(2, jnp.int32), None)
        dtype('float32')
    """
    if dtype is not None:
        if inexact and not jnp.issubdtype(dtype, jnp.inexact):
            raise ValueError(f"dtype must be inexact (floating or complex) to compute in, got {dtype}.")
        return dtype
    present = [jnp.asarray(x) for x in args if x is not None]
    promoted = jnp.result_type(*present)
    return (
        promoted if not inexact or jnp.issubdtype(promoted, jnp.inexact) else jnp.promote_types(promoted, jnp.float32)
    )


def promote_dtype(args: T, /, *, dtype: Dtype | None = None, inexact: bool = True) -> T:
    """Casts all values to the dtype that `canonicalize_dtype` finds.

    Args:
        args: A tuple of arrays or scalars; None stays None.
        dtype: If given, the dtype to cast to.
        inexact: The dtype must be a floating or complex one.

    Returns:
        A tuple of arrays with one dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> x, bias = promote_dtype((jnp.zeros(2, jnp.bfloat16), jnp.zeros(2, jnp.float32)))
        >>> x.dtype, bias.dtype
        (dtype('float32'), dtype('float32'))
    """
    dtype = canonicalize_dtype(*args, dtype=dtype, inexact=inexact)
    return tuple(None if x is None else _cast(x, dtype) for x in args)  # type: ignore[return-value]


def widest(*values: Any) -> Dtype:
    """The dtype that holds all values or dtypes: a deliberate widening, allowed under strict promotion."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*values)


def promote_all(promote: PromoteDtype | None, args: Iterable[Any], dtype: Dtype | None) -> tuple[Any, ...]:
    """Applies a layer's `promote_dtype` option to its arrays; None leaves them as they are."""
    args = tuple(args)
    return args if promote is None else tuple(promote(args, dtype=dtype))


def _cast(x: Any, dtype: Dtype) -> jax.Array:
    # A weakly typed array must still be converted, or the result would be weakly typed.
    if isinstance(x, jax.Array) and x.dtype == dtype and not x.weak_type:
        return x
    return jnp.asarray(x, dtype)
