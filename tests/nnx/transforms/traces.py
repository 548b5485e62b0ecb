"""A model, and a jitted function that counts its traces."""

import jax.numpy as jnp

from sonde import nnx


class Model(nnx.Module):
    def __init__(self, n=2, start=0.0):
        self.w = nnx.Param(jnp.asarray(start) + 1.0)
        self.count = nnx.Variable(jnp.array(0))
        self.layers = nnx.List([nnx.Dict(w=nnx.Param(jnp.asarray(float(i + 1)))) for i in range(n)])
        self.scale = 2.0

    def __call__(self, x):
        self.count[...] += 1
        x = x * self.w * self.scale
        for layer in self.layers:
            x = x * layer.w
        return x


def traced(**options):
    """A jitted call of a Model, and the list of its traces."""
    traces = []

    @nnx.jit(**options)
    def f(model, x):
        traces.append(1)
        return model(x)

    return f, traces
