"""Operations that only move data, done by NumPy when they run outside of any transform.

JAX compiles a program for each operation on each shape, which takes ten milliseconds; the tests have thousands of them.
The arrays are the same to the bit. Whatever is not plain (arrays that were put on a device, meshes, keys, weak types,
guarded transfers) goes the usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import config, source_info_util
from jax._src.array import ArrayImpl
from jax._src.lax import lax, slicing

_KINDS = "biuf"


def _broadcast(x: Any, *, shape: Any, broadcast_dimensions: Any, sharding: Any) -> Any:
    axes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape):
        axes[axis] = size
    return None if sharding is not None else np.broadcast_to(x.reshape(axes), shape)


def _reshape(x: Any, *, new_sizes: Any, dimensions: Any, sharding: Any) -> Any:
    return None if dimensions is not None or sharding is not None else x.reshape(new_sizes)


def _iota(*, dtype: Any, shape: Any, dimension: Any, sharding: Any) -> Any:
    if sharding is not None or np.dtype(dtype).kind not in _KINDS:
        return None
    axes = [-1 if axis == dimension else 1 for axis in range(len(shape))]
    return np.broadcast_to(np.arange(shape[dimension]).astype(dtype).reshape(axes), shape)


def _slice(x: Any, *, start_indices: Any, limit_indices: Any, strides: Any) -> Any:
    strides = strides or (1,) * x.ndim
    return x[tuple(slice(*part) for part in zip(start_indices, limit_indices, strides))]


def _squeeze(x: Any, *, dimensions: Any) -> Any:
    return np.squeeze(x, dimensions)


def _transpose(x: Any, *, permutation: Any) -> Any:
    return np.transpose(x, permutation)


def _convert(x: Any, *, new_dtype: Any, weak_type: bool, sharding: Any) -> Any:
    to = np.dtype(new_dtype) if isinstance(new_dtype, (type, np.dtype)) else None
    if weak_type or sharding is not None or to is None or to.kind not in _KINDS:
        return None
    return None if x.dtype.kind == "f" and to.kind != "f" else x.astype(to)  # such numbers are rounded in several ways


def _is_plain(x: Any) -> bool:
    return (
        type(x) is ArrayImpl
        and not x._committed
        and not x.aval.weak_type
        and not x.is_deleted()
        and isinstance(x.dtype, np.dtype)
        and x.dtype.kind in _KINDS
    )


def _nothing_is_set() -> bool:
    return (
        config.default_device.value is None
        and config.transfer_guard_device_to_host.value in (None, "allow")
        and config.transfer_guard_host_to_device.value in (None, "allow")
        and jax.sharding.get_abstract_mesh().empty
        and not config.enable_checks.value
    )


def _quick(usual: Callable[..., Any], move: Callable[..., Any]) -> Callable[..., Any]:
    def impl(*args: Any, **params: Any) -> Any:
        if all(map(_is_plain, args)) and _nothing_is_set():
            moved = move(*map(np.asarray, args), **params)
            if moved is not None:
                return jax.device_put(moved, may_alias=False)
        return usual(*args, **params)

    return impl


def use_quick_moves() -> None:
    """From now on, in this process."""
    # JAX keeps the programs of its own functions, with the lines that traced them first.
    source_info_util.register_exclusion(__file__)
    moves = {
        lax.broadcast_in_dim_p: _broadcast,
        lax.reshape_p: _reshape,
        lax.iota_p: _iota,
        lax.convert_element_type_p: _convert,
        lax.squeeze_p: _squeeze,
        lax.transpose_p: _transpose,
        slicing.slice_p: _slice,
    }
    for primitive, move in moves.items():
        primitive.impl = _quick(primitive.impl, move)
