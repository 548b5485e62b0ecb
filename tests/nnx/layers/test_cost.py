"""The compiled layer must not cost more than Flax's: operations and temporary memory."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import pytest

from sonde import nnx

X = jax.ShapeDtypeStruct((8, 16, 32), jnp.float32)
IMAGES = jax.ShapeDtypeStruct((4, 16, 16, 8), jnp.float32)
TOKENS = jax.ShapeDtypeStruct((8, 16), jnp.int32)

LAYERS = {
    "Linear": (lambda n, r: n.Linear(32, 64, rngs=r), X),
    "LinearGeneral": (lambda n, r: n.LinearGeneral((16, 32), (4, 8), axis=(1, 2), rngs=r), X),
    "Einsum": (lambda n, r: n.Einsum("ntd,dhk->nthk", (32, 4, 8), (4, 8), rngs=r), X),
    "Embed": (lambda n, r: n.Embed(100, 32, dtype=jnp.bfloat16, rngs=r), TOKENS),
    "Embed a few": (lambda n, r: n.Embed(1000, 32, dtype=jnp.bfloat16, rngs=r), TOKENS),
    "Conv": (lambda n, r: n.Conv(8, 16, (3, 3), rngs=r), IMAGES),
    "Conv circular": (lambda n, r: n.Conv(8, 16, (3, 3), padding="CIRCULAR", rngs=r), IMAGES),
    "Conv causal": (lambda n, r: n.Conv(32, 16, 3, padding="CAUSAL", rngs=r), X),
    "ConvTranspose": (lambda n, r: n.ConvTranspose(8, 16, (3, 3), strides=(2, 2), rngs=r), IMAGES),
    "ConvTranspose circular": (lambda n, r: n.ConvTranspose(8, 16, (3, 3), padding="CIRCULAR", rngs=r), IMAGES),
    "BatchNorm": (lambda n, r: n.BatchNorm(32, rngs=r), X),
    "BatchNorm averages": (lambda n, r: n.BatchNorm(32, use_running_average=True, rngs=r), X),
    "LayerNorm": (lambda n, r: n.LayerNorm(32, rngs=r), X),
    "RMSNorm": (lambda n, r: n.RMSNorm(32, rngs=r), X),
    "GroupNorm": (lambda n, r: n.GroupNorm(32, 4, rngs=r), X),
    "InstanceNorm": (lambda n, r: n.InstanceNorm(32, rngs=r), X),
    "Dropout": (lambda n, r: n.Dropout(0.5, rngs=r), X),
    "MultiHeadAttention": (lambda n, r: n.MultiHeadAttention(4, 32, decode=False, rngs=r), X),
    "grouped queries": (lambda n, r: n.MultiHeadAttention(4, 32, num_kv_heads=2, decode=False, rngs=r), X),
    "attention with dropout": (
        lambda n, r: n.MultiHeadAttention(4, 32, dropout_rate=0.5, deterministic=False, decode=False, rngs=r),
        X,
    ),
    "LSTM": (lambda n, r: n.RNN(n.LSTMCell(32, 16, rngs=r)), X),
    "GRU": (lambda n, r: n.RNN(n.GRUCell(32, 16, rngs=r)), X),
    "LoRALinear": (lambda n, r: n.LoRALinear(32, 64, lora_rank=2, rngs=r), X),
    "SpectralNorm": (lambda n, r: n.SpectralNorm(n.Linear(32, 64, rngs=r), rngs=r), X),
    # Without scales: ours are parameters and have gradients, those of some versions of Flax are not.
    "WeightNorm": (lambda n, r: n.WeightNorm(n.Linear(32, 64, rngs=r), use_scale=False, rngs=r), X),
}


def cost(where, make, x, *, backward):
    graph, params, rest = where.split(make(where, where.Rngs(0, dropout=1)), where.Param, ...)

    def forward(params, rest, x):
        model = where.merge(graph, params, rest)
        return model(x), where.state(model, where.Not(where.Param))

    def loss(params, rest, x):
        y, rest = forward(params, jax.tree.map(lambda x: x, rest), x)
        return (y.astype(jnp.float32) ** 2).sum(), rest

    compiled = jax.jit(jax.grad(loss, has_aux=True) if backward else forward).lower(params, rest, x).compile()
    return compiled.cost_analysis().get("flops", 0.0), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.every(6)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_costs_no_more_than_flax_s(name):
    make, x = LAYERS[name]
    for backward in (False, True):
        ours, theirs = (cost(where, make, x, backward=backward) for where in (nnx, fnnx))
        assert ours[0] <= theirs[0], ("operations", backward)
        assert ours[1] <= theirs[1], ("bytes", backward)
