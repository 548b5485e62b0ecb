"""Activation functions: JAX's, under the names that both faces export, and one with a parameter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.nn import (
    celu,
    elu,
    gelu,
    glu,
    hard_sigmoid,
    hard_silu,
    hard_swish,
    hard_tanh,
    identity,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    logsumexp,
    one_hot,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    soft_sign,
    softmax,
    softplus,
    standardize,
    swish,
)
from jax.numpy import tanh

__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log_sigmoid",
    "log_softmax",
    "logsumexp",
    "one_hot",
    "prelu",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "standardize",
    "swish",
    "tanh",
]


def prelu(inputs: jax.Array, negative_slope: jax.Array) -> jax.Array:
    """Multiplies negative inputs by a learned slope, which is cast to the dtype of the inputs.

    Example:
        >>> import jax.numpy as jnp
        >>> prelu(jnp.array([-2.0, 3.0]), jnp.array(0.5))
        Array([-1.,  3.], dtype=float32)
    """
    slope = jnp.asarray(negative_slope, inputs.dtype)
    return jnp.where(inputs >= jnp.zeros((), inputs.dtype), inputs, slope * inputs)
