"""Activation functions: JAX's, under the names that both faces export; one with a parameter; and soft caps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.nn import celu as celu
from jax.nn import elu as elu
from jax.nn import gelu as gelu
from jax.nn import glu as glu
from jax.nn import hard_sigmoid as hard_sigmoid
from jax.nn import hard_silu as hard_silu
from jax.nn import hard_swish as hard_swish
from jax.nn import hard_tanh as hard_tanh
from jax.nn import identity as identity
from jax.nn import leaky_relu as leaky_relu
from jax.nn import log_sigmoid as log_sigmoid
from jax.nn import log_softmax as log_softmax
from jax.nn import logsumexp as logsumexp
from jax.nn import one_hot as one_hot
from jax.nn import relu as relu
from jax.nn import relu6 as relu6
from jax.nn import selu as selu
from jax.nn import sigmoid as sigmoid
from jax.nn import silu as silu
from jax.nn import soft_sign as soft_sign
from jax.nn import softmax as softmax
from jax.nn import softplus as softplus
from jax.nn import standardize as standardize
from jax.nn import swish as swish
from jax.numpy import tanh as tanh


def prelu(inputs: jax.Array, negative_slope: jax.Array) -> jax.Array:
    """Multiplies negative inputs by a learned slope, which is cast to the dtype of the inputs.

    Example:
        >>> import jax.numpy as jnp
        >>> prelu(jnp.array([-2.0, 3.0]), jnp.array(0.5))
        Array([-1.,  3.], dtype=float32)
    """
    slope = jnp.asarray(negative_slope, inputs.dtype)
    return jnp.where(inputs >= jnp.zeros((), inputs.dtype), inputs, slope * inputs)


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """Squeezes numbers into the range from `-cap` to `cap` by a hyperbolic tangent; None changes nothing.

    Small numbers stay nearly as they are.

    Example:
        >>> import jax.numpy as jnp
        >>> soft_cap(jnp.array([0.0, 1000.0]), 30.0)
        Array([ 0., 30.], dtype=float32)
    """
    return x if cap is None else cap * jnp.tanh(x / cap)
