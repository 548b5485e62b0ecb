"""One small network, three times: a plain function, a `sonde.nnx` Module, a `sonde.linen` Module.

`relu(x @ W)` is a site called `hidden`; with the input `X` it is `HIDDEN`, whose second unit never fires.
"""

import jax
import jax.numpy as jnp
import pytest

import sonde
from sonde import linen, nnx

W = jnp.array([[1.0, -1.0, 0.0], [2.0, -2.0, 1.0]])
V = jnp.array([1.0, 5.0, -1.0])
X = jnp.array([[1.0, 2.0], [3.0, 0.0]])
HIDDEN = jnp.array([[5.0, 0.0, 2.0], [3.0, 0.0, 0.0]])
OUT = jnp.array([3.0, 3.0])


def plain(x, w=W, v=V):
    return sonde.sow(jax.nn.relu(x @ w), "hidden") @ v


class Network(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(W)
        self.v = nnx.Param(V)

    def __call__(self, x):
        return sonde.sow(nnx.relu(x @ self.w[...]), "hidden") @ self.v[...]


class LinenNetwork(linen.Module):
    @linen.compact
    def __call__(self, x):
        w = self.param("w", lambda _: W)
        v = self.param("v", lambda _: V)
        return sonde.sow(linen.relu(x @ w), "hidden") @ v


def by_linen(x):
    return LinenNetwork().apply({"params": {"w": W, "v": V}}, x)


def by_nnx_jit(x):
    return nnx.jit(lambda model, x: model(x))(Network(), x)


def forward(name):
    return {
        "plain": plain,
        "plain-jit": jax.jit(plain),
        "nnx": Network(),
        "nnx-jit": by_nnx_jit,
        "linen": by_linen,
        "linen-jit": jax.jit(by_linen),
    }[name]


every_face = pytest.mark.parametrize("face", ["plain", "plain-jit", "nnx", "nnx-jit", "linen", "linen-jit"])
