"""Layers under JAX's strictest settings: no silent widening, no silent broadcasting of ranks, no leaked tracers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from sonde import nnx

LAYERS = {
    "Linear": (lambda **o: nnx.Linear(8, 4, **o), (2, 5, 8)),
    "LinearGeneral": (lambda **o: nnx.LinearGeneral(8, (2, 4), batch_axis={0: 2}, **o), (2, 5, 8)),
    "Einsum": (lambda **o: nnx.Einsum("ntd,dhk->nthk", (8, 2, 3), (2, 3), **o), (2, 5, 8)),
    "Conv": (lambda **o: nnx.Conv(8, 4, 3, padding="CIRCULAR", mask=jnp.ones((3, 8, 4)), **o), (2, 5, 8)),
    "ConvTranspose": (lambda **o: nnx.ConvTranspose(8, 4, 3, strides=2, padding="CIRCULAR", **o), (2, 5, 8)),
    "BatchNorm": (lambda **o: nnx.BatchNorm(8, **o), (2, 5, 8)),
    "BatchNorm averages": (lambda **o: nnx.BatchNorm(8, use_running_average=True, **o), (2, 5, 8)),
    "LayerNorm": (lambda **o: nnx.LayerNorm(8, **o), (2, 5, 8)),
    "RMSNorm": (lambda **o: nnx.RMSNorm(8, **o), (2, 5, 8)),
    "GroupNorm": (lambda **o: nnx.GroupNorm(8, 2, **o), (2, 5, 8)),
    "InstanceNorm": (lambda **o: nnx.InstanceNorm(8, **o), (2, 5, 8)),
    "SpectralNorm": (lambda rngs, **o: nnx.SpectralNorm(nnx.Linear(8, 4, rngs=rngs, **o), rngs=rngs), (2, 8)),
    "WeightNorm": (lambda rngs, **o: nnx.WeightNorm(nnx.Linear(8, 4, rngs=rngs, **o), rngs=rngs), (2, 8)),
    "attention": (lambda **o: nnx.MultiHeadAttention(4, 8, num_kv_heads=2, decode=False, **o), (2, 5, 8)),
    "attention with dropout": (
        lambda **o: nnx.MultiHeadAttention(4, 8, dropout_rate=0.5, deterministic=False, decode=False, **o),
        (2, 5, 8),
    ),
    "LSTM": (lambda **o: nnx.RNN(nnx.LSTMCell(8, 4, **o)), (2, 5, 8)),
    "GRU": (lambda **o: nnx.RNN(nnx.GRUCell(8, 4, **o), reverse=True), (2, 5, 8)),
    "LoRALinear": (lambda **o: nnx.LoRALinear(8, 4, lora_rank=2, **o), (2, 5, 8)),
    "PReLU": (lambda rngs, **o: nnx.PReLU(**o), (2, 5, 8)),
    "Dropout": (lambda rngs, **o: nnx.Dropout(0.5, rngs=rngs), (2, 5, 8)),
}


# Half precision inside, float32 around: JAX's own attention, a float32 memory and a float32 correction beside
# half-precision ones are mixtures that strict promotion is there to refuse.
MIXTURES = ("attention", "LSTM", "GRU", "LoRALinear")


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "name, dtype", [(name, None) for name in LAYERS] + [(name, jnp.bfloat16) for name in LAYERS if name not in MIXTURES]
)
def test_strictest_settings(name, dtype):
    make, shape = LAYERS[name]
    layer = make(rngs=nnx.Rngs(0), dtype=dtype)
    graph, params, rest = nnx.split(layer, nnx.Param, ...)

    def loss(params, x):
        model = nnx.merge(graph, params, jax.tree.map(lambda x: x, rest))
        return (model(x).astype(jnp.float32) ** 2).sum()

    x = jnp.ones(shape, dtype or jnp.float32)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"), jax.checking_leaks():
        grads = jax.jit(jax.grad(loss))(params, x)
    assert all(jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads))
