"""Normalization of weights instead of values: by their length, or by their largest singular value."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from sonde._array_text import describe
from sonde.errors import LayerInputError
from sonde.ops.dtypes import Dtype, canonicalize_dtype, widest
from sonde.ops.norm import Axes, canonicalize_axes


def l2_normalize(x: jax.Array, axes: Axes | None = None, *, epsilon: float = 1e-12) -> jax.Array:
    """Divides by the length over some axes, or over all if None.

    Example:
        >>> import jax.numpy as jnp
        >>> l2_normalize(jnp.array([3.0, 4.0])).round(3)
        Array([0.6, 0.8], dtype=float32)
    """
    squares = jnp.sum(x * x.conj(), axis=None if axes is None else canonicalize_axes(axes, x.ndim), keepdims=True)
    return x * lax.rsqrt(squares + jnp.asarray(epsilon, squares.dtype))


def weight_norm(
    value: jax.Array,
    scale: jax.Array | None = None,
    *,
    feature_axes: Axes | None = -1,
    epsilon: float = 1e-12,
    dtype: Dtype | None = None,
) -> jax.Array:
    """Scales every feature of a weight to length 1, or to a learned length.

    `scale` has the feature axes, or is None. Every index of the feature axes has a length of its own; None means one
    length for all. `epsilon` is added to the squared length. A `dtype` of None is that of weight and scale.

    Example:
        >>> import jax.numpy as jnp
        >>> weight_norm(jnp.array([[3.0, 0.0], [4.0, 2.0]]), jnp.array([1.0, 5.0])).round(3)
        Array([[0.6, 0. ],
               [0.8, 5. ]], dtype=float32)
    """
    features = () if feature_axes is None else canonicalize_axes(feature_axes, value.ndim)
    out_dtype = canonicalize_dtype(value, scale, dtype=dtype)
    y = l2_normalize(value, tuple(i for i in range(value.ndim) if i not in features), epsilon=epsilon)
    if scale is not None:
        compute = widest(y, scale)
        shape = tuple(n if i in features else 1 for i, n in enumerate(value.shape))
        y = jnp.asarray(y, compute) * jnp.asarray(jnp.reshape(scale, shape), compute)
    return jnp.asarray(y, out_dtype)


def spectral_norm(
    value: jax.Array,
    u: jax.Array,
    *,
    n_steps: int = 1,
    epsilon: float = 1e-12,
    dtype: Dtype | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Divides a weight by an estimate of its largest singular value, by power iteration.

    A weight with more than two axes is treated as a matrix whose columns are the last axis.

    Args:
        value: The weight, with at least two axes.
        u: `(1, columns)`: the result of the last iteration.
        n_steps: How many iterations.
        epsilon: Added to squared lengths.
        dtype: The dtype of the result; None derives it from the weight.

    Returns:
        The divided weight, the new `u`, and the singular value. No gradient flows through the iteration
        itself.

    Raises:
        LayerInputError: The weight has fewer than two axes, or `n_steps` is less than 1.
    """
    if value.ndim < 2:
        raise LayerInputError(f"spectral norm needs a weight with at least two axes, got {describe(value)}.")
    if n_steps < 1:
        raise LayerInputError(f"`n_steps` must be at least 1, got {n_steps}.")
    matrix = jnp.reshape(value, (-1, value.shape[-1]))
    rows = columns = u
    for _ in range(n_steps):
        rows = l2_normalize(columns @ matrix.T, epsilon=epsilon)
        columns = l2_normalize(rows @ matrix, epsilon=epsilon)
    # The vectors are treated as constants: sigma is then linear in the weight, which gives the right gradient.
    rows, u = lax.stop_gradient((rows, columns))
    sigma = jnp.squeeze(rows @ matrix @ u.T)
    divisor = jnp.where(sigma != 0, sigma, jnp.ones_like(sigma))
    out_dtype = canonicalize_dtype(value, dtype=dtype)
    y = jnp.asarray(matrix, widest(matrix, divisor)) / divisor
    return jnp.asarray(jnp.reshape(y, value.shape), out_dtype), u, sigma


def initial_u(rng: jax.Array, columns: int, dtype: Dtype = jnp.float32) -> jax.Array:
    """The initial vector of the power iteration: small random numbers, shape `(1, columns)`."""
    return jax.nn.initializers.normal()(rng, (1, columns), dtype)
