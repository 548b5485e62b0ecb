"""A small model to look at."""

import jax
import jax.numpy as jnp

from sonde import nnx


class Dense(nnx.Module):
    def __init__(self, n_in, n_out, rngs):
        self.kernel = nnx.Param(rngs.normal((n_in, n_out)))
        self.bias = nnx.Param(jnp.zeros(n_out))
        self.size = n_out

    def __call__(self, x):
        return x @ self.kernel + self.bias


class Model(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([Dense(2, 3, rngs), Dense(3, 3, rngs)])
        self.seen = nnx.BatchStat(jnp.zeros(2))
        self.rngs = rngs

    def __call__(self, x, *, scale=1):
        for layer in self.layers:
            x = jax.jit(lambda layer, x: layer(x))(layer, x)
        self.seen[...] += 1
        return {"y": x * scale + self.rngs.normal(x.shape)}
