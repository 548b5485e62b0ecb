"""Default initializers for each kind of parameter, and how parameters are drawn.

Where the two Flax faces differ:

- Recurrent kernels are orthogonal. Only `LSTMCell` of `flax.nnx` can draw them in half precision too, by
  `orthogonal_any_dtype`.
- `GRUCell` of `flax.nnx` has one bias for the three input maps and none for the state; `flax.linen` has another one,
  `hn`, inside the reset gate.

In both, a kernel with several input or output axes (`LinearGeneral`, `DenseGeneral`) is drawn as a matrix,
see `matrix_shape`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde.ops.dtypes import Dtype
from sonde.ops.initializers import he_uniform, lecun_normal, orthogonal, variance_scaling
from sonde.ops.initializers import ones as ones
from sonde.ops.initializers import zeros as zeros

default_kernel_init = lecun_normal()
default_bias_init = zeros
default_embed_init = variance_scaling(1.0, "fan_in", "normal", out_axis=0)
default_lora_a_init = he_uniform()


def matrix_shape(shape: Sequence[int], *, n_batch: int, n_in: int) -> tuple[int, int]:
    """The shape in which a kernel `(batch..., in..., out...)` is drawn, to be reshaped afterwards.

    Initializers that use fan-in and fan-out then see a matrix. Batch axes count as fan-in, as in Flax.

    Example:
        >>> matrix_shape((2, 3, 4, 5), n_batch=1, n_in=2)
        (24, 5)
    """
    n = n_batch + n_in
    return math.prod(shape[:n]), math.prod(shape[n:])


def orthogonal_any_dtype(key: jax.Array, shape: Sequence[int], dtype: Dtype = jnp.float32) -> jax.Array:
    """An orthogonal matrix in any float dtype. Half precision has no QR: it is drawn in float32 and cast."""
    half = jnp.dtype(dtype).itemsize < 4
    return orthogonal()(key, tuple(shape), jnp.float32 if half else dtype).astype(dtype)


SAME_WHEN_COMPILED = (default_kernel_init, default_lora_a_init, zeros, ones)
"""Initializers that give exactly the same numbers when compiled; not all do."""


@functools.lru_cache(maxsize=4096)
def compiled_draw(
    init: Callable[..., Any], shape: tuple[int, ...], dtype: Dtype
) -> Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """`init` as one compiled call, from the key and the counter of a random stream.

    Drawing step by step takes a hundred times as long, and would be most of the time to build a model.

    Args:
        init: One of `SAME_WHEN_COMPILED`.
        shape: The shape of the parameter.
        dtype: The dtype of the parameter.

    Returns:
        A function from the stream's key and counter to the parameter and the next counter.
    """

    @jax.jit
    def drawn(key: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
        return init(jax.random.fold_in(key, count), shape, dtype), count + 1

    return drawn
