"""Layers made of other layers and functions, `Sequential` and `BatchApply`, and `PReLU`, a learned activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde.linen.modules.attach import describe
from sonde.linen.modules.methods import compact
from sonde.linen.modules.module import Module
from sonde.ops.activations import prelu
from sonde.ops.chaining import call_in_turn


class Sequential(Module):
    """Calls modules and functions one after the other.

    A tuple that one returns is spread over the positional arguments of the next, a dict over its keyword arguments.
    A function may make modules.

    Attributes:
        layers: The modules and functions.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from sonde import linen as nn
        >>> model = nn.Sequential((nn.LayerNorm(), jnp.tanh, nn.Dense(5)))
        >>> sorted(model.init(jax.random.key(2), jnp.ones(7))["params"])
        ['layers_0', 'layers_2']
    """

    layers: Sequence[Callable[..., Any]]

    def __post_init__(self) -> None:
        """Checks that the layers are a sequence."""
        if not isinstance(self.layers, Sequence):
            raise ValueError(f"Sequential takes a sequence of layers, got {self.layers!r}")
        super().__post_init__()

    @compact
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the first layer with the arguments, and every other layer with the result of the one before."""
        if not self.layers:
            raise ValueError(f"Empty Sequential module {describe(self)}: it needs at least one layer to be called")
        return call_in_turn(self.layers, args, kwargs)


class BatchApply:
    """Calls a function with the first axes of its inputs merged into one, and splits that axis of the outputs again.

    Args:
        f: The function.
        num_dims: The number of axes.

    Example:
        >>> import jax.numpy as jnp
        >>> f = BatchApply(lambda x: x.sum(axis=0, keepdims=True) * jnp.ones((6, 1)))
        >>> f(jnp.ones((2, 3, 4))).shape
        (2, 3, 4)
    """

    def __init__(self, f: Callable[..., Any], num_dims: int = 2) -> None:
        self.f = f
        self.num_dims = num_dims

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function; scalars and non-arrays are passed as they are."""
        n = self.num_dims

        def merged(x: Any) -> Any:
            return jnp.reshape(x, (-1, *x.shape[n:])) if jnp.ndim(x) >= n else x

        arrays = [x for x in jax.tree.leaves((args, kwargs)) if jnp.ndim(x) >= n]
        if not arrays:
            raise ValueError(f"BatchApply(num_dims={n}) needs an input with at least {n} axes")
        sizes = arrays[0].shape[:n]
        args, kwargs = jax.tree.map(merged, (args, kwargs))
        return jax.tree.map(lambda y: jnp.reshape(y, (*sizes, *y.shape[1:])), self.f(*args, **kwargs))


class PReLU(Module):
    """An activation that multiplies negative inputs by a learned slope.

    Attributes:
        param_dtype: The dtype of the slope.
        negative_slope_init: The initial slope.
    """

    param_dtype: Any = jnp.float32
    negative_slope_init: float = 0.01

    @compact
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Applies the activation."""
        slope = self.param("negative_slope", lambda _: jnp.asarray(self.negative_slope_init, self.param_dtype))
        return prelu(jnp.asarray(inputs), slope)
