"""A cell that counts its calls."""

import jax.numpy as jnp

from sonde import nnx


class Cell(nnx.Module):
    def __init__(self, n=None):
        self.w = nnx.Param(jnp.array(2.0) if n is None else jnp.arange(1.0, n + 1))
        self.count = nnx.Variable(jnp.array(0) if n is None else jnp.zeros(n, int))
        self.flag = 1

    def __call__(self, x):
        self.count[...] += 1
        return x * self.w
