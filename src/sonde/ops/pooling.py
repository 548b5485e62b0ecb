"""Pooling: one number per window, for inputs with features last.

Inputs are `(batch..., spatial..., features)` with any number of batch axes, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from sonde.errors import LayerInputError
from sonde.ops.checks import expect_rank
from sonde.ops.padding import per_axis

PoolPadding = str | Sequence[tuple[int, int]]


def pool(
    inputs: jax.Array,
    init: ArrayLike,
    reduce_fn: Callable[[Any, Any], Any],
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: PoolPadding,
) -> jax.Array:
    """Reduces every window with a function.

    Args:
        inputs: `(batch..., spatial..., features)`.
        init: The neutral element of `reduce_fn`.
        reduce_fn: A function of two values; `lax.add`, `lax.max` and `lax.min` can be differentiated.
        window_shape: One number per spatial axis.
        strides: One number per spatial axis; None means 1.
        padding: `'SAME'`, `'VALID'`, or a (low, high) pair per spatial axis.

    Returns:
        `(batch..., spatial..., features)`.

    Raises:
        LayerInputError: The inputs have too few axes, or an option does not have one entry per spatial axis.

    Example:
        >>> import jax.numpy as jnp
        >>> pool(jnp.ones((1, 4, 4, 3)), 0.0, jax.lax.add, (2, 2), (2, 2), "VALID").shape
        (1, 2, 2, 3)
    """
    rank = len(window_shape)
    expect_rank(inputs, least=rank + 1, argument="inputs", meaning=f"{rank} spatial axes and the features")
    steps = per_axis(strides, rank, option="strides")
    n_batch = inputs.ndim - rank - 1
    before = (1,) * n_batch
    if not isinstance(padding, str):
        pairs = [tuple(pair) for pair in padding]
        if len(pairs) != rank or any(len(pair) != 2 for pair in pairs):
            raise LayerInputError(
                f"`padding` must be 'SAME', 'VALID' or one (low, high) pair for each of the {rank} spatial axes, got "
                f"{padding!r}."
            )
        padding = [(0, 0)] * n_batch + [(low, high) for low, high in pairs] + [(0, 0)]
    return lax.reduce_window(inputs, init, reduce_fn, (*before, *window_shape, 1), (*before, *steps, 1), padding)


def avg_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: PoolPadding = "VALID",
    count_include_pad: bool = True,
) -> jax.Array:
    """The mean of every window.

    Arguments as in `pool`. The sum is divided by the size of the window, or, with `count_include_pad=False`, by the
    number of its elements that are not padding.
    """
    y = pool(inputs, 0.0, lax.add, window_shape, strides, padding)
    if count_include_pad:
        return y / np.prod(window_shape)
    # The position of padding depends only on the spatial axes.
    rank = len(window_shape)
    is_input = jnp.ones((*(1,) * (inputs.ndim - rank - 1), *inputs.shape[-rank - 1 : -1], 1), y.dtype)
    return y / pool(is_input, 0.0, lax.add, window_shape, strides, padding)


def max_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: PoolPadding = "VALID",
) -> jax.Array:
    """The largest element of every window; arguments as in `avg_pool`. Padding is minus infinity."""
    return pool(inputs, -jnp.inf, lax.max, window_shape, strides, padding)


def min_pool(
    inputs: jax.Array,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: PoolPadding = "VALID",
) -> jax.Array:
    """The smallest element of every window; arguments as in `avg_pool`. Padding is infinity."""
    return pool(inputs, jnp.inf, lax.min, window_shape, strides, padding)
