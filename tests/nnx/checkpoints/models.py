"""Models that exist in both implementations, and what their states hold."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax


def make(nnx, seed: int, width: int = 4):
    """A model with parameters, bfloat16, batch statistics, random keys and counts, a list, and a bare array."""

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, width, rngs=rngs)
            self.norm = nnx.BatchNorm(width, param_dtype=jnp.bfloat16, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, width, decode=False, rngs=rngs)
            self.blocks = nnx.List([nnx.Linear(width, width, rngs=rngs) for _ in range(11)])
            self.table = nnx.data(jnp.full((2,), float(seed)))

        def __call__(self, x):
            x = self.drop(self.norm(self.first(x)))
            for block in self.blocks:
                x = x + nnx.tanh(block(x))
            return self.attention(x).sum() + self.table.sum()

    return Net(nnx.Rngs(seed, dropout=seed + 1))


def train(nnx, seed: int):
    """A model and its optimizer after two steps, so that nothing is at its initial value."""
    return nnx.clone(_trained(nnx, seed))


@functools.cache
def _trained(nnx, seed: int):
    model = make(nnx, seed)
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    x = jnp.asarray(np.random.default_rng(seed).normal(size=(5, 3)), jnp.float32)

    @jax.jit
    def gradients(params, rest):
        def loss(params):
            copy = nnx.merge(graphdef, params, rest, copy=True)
            return copy(x), nnx.state(copy, nnx.Not(nnx.Param))

        return jax.grad(loss, has_aux=True)(params)

    for _ in range(2):
        graphdef, params, rest = nnx.split(model, nnx.Param, ...)
        grads, rest = gradients(params, rest)
        optimizer.update(model, grads)
        nnx.update(model, rest)
    return model, optimizer


def numbers(nnx, node) -> dict[tuple[str, ...], tuple[str, list]]:
    """Every array of a state as plain data, with its dtype."""
    found = {}
    for path, leaf in nnx.to_flat_state(nnx.state(node)):
        value = leaf.get_raw_value() if isinstance(leaf, nnx.Variable) else leaf
        key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
        data = jax.random.key_data(value) if key else value
        found[tuple(map(str, path))] = (str(value.dtype), np.asarray(data).tolist())
    return found
