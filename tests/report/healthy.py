"""Healthy networks: newly initialized, on ordinary data. They must have no findings."""

import jax
import jax.numpy as jnp
import optax

import sonde
from sonde import linen, nnx


class Block(nnx.Module):
    def __init__(self, width, heads, rngs):
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.attn = nnx.MultiHeadAttention(heads, width, rngs=rngs, decode=False)
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x, mask):
        x = sonde.sow(x + self.attn(self.norm1(x), mask=mask, sow_weights=True), "attended")
        h = sonde.sow(nnx.gelu(self.up(self.norm2(x))), "mlp")
        return sonde.sow(x + self.down(h), "stream")


class Transformer(nnx.Module):
    def __init__(self, rngs, *, layers=4, width=32, vocabulary=29):
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, 4, rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, vocabulary, rngs=rngs)

    def __call__(self, tokens):
        x = sonde.sow(self.embed(tokens), "embedded")
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return sonde.sow(self.head(self.norm(x)), "logits")


def transformer(seed):
    model = Transformer(nnx.Rngs(seed))
    tokens = jax.random.randint(jax.random.key(seed + 100), (4, 20), 0, 29)

    def loss(model, tokens):
        logits = model(tokens[:, :-1])
        return sonde.sow(optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]), "loss").mean()

    return nnx.value_and_grad(loss), (model, tokens)


class MLP(linen.Module):
    @linen.compact
    def __call__(self, x):
        for width in (128, 128, 64):
            x = sonde.sow(linen.relu(linen.Dense(width)(x)), f"hidden{width}")
        return linen.Dense(10)(x)


def mlp(seed):
    x = jax.random.normal(jax.random.key(seed), (128, 30))
    y = jax.random.randint(jax.random.key(seed + 1), (128,), 0, 10)
    params = MLP().init(jax.random.key(seed + 2), x)

    def loss(params, x, y):
        logits = sonde.sow(MLP().apply(params, x), "logits")
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    return jax.jit(jax.value_and_grad(loss)), (params, x, y)


class CNN(nnx.Module):
    def __init__(self, rngs):
        self.conv1 = nnx.Conv(1, 16, (3, 3), rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), rngs=rngs)
        self.dense = nnx.Linear(32 * 4 * 4, 10, rngs=rngs)

    def __call__(self, x):
        x = sonde.sow(nnx.relu(self.conv1(x)), "features1")
        x = nnx.avg_pool(x, (2, 2), (2, 2))
        x = sonde.sow(nnx.relu(self.conv2(x)), "features2")
        x = nnx.avg_pool(x, (2, 2), (2, 2))
        return sonde.sow(self.dense(x.reshape(len(x), -1)), "logits")


def cnn(seed):
    images = jax.random.uniform(jax.random.key(seed), (32, 16, 16, 1))
    labels = jax.random.randint(jax.random.key(seed + 1), (32,), 0, 10)

    def loss(model, images, labels):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    return nnx.value_and_grad(loss), (CNN(nnx.Rngs(seed)), images, labels)


class Tagger(nnx.Module):
    def __init__(self, rngs):
        self.cell = nnx.OptimizedLSTMCell(8, 32, rngs=rngs)
        self.head = nnx.Linear(32, 5, rngs=rngs)

    def __call__(self, x):
        def step(carry, x):
            (c, h), y = self.cell(carry, x)
            return (sonde.sow(c, "memory"), sonde.sow(h, "state")), y

        carry = (jnp.zeros((len(x), 32)), jnp.zeros((len(x), 32)))
        _, ys = jax.lax.scan(step, carry, jnp.moveaxis(x, 1, 0))
        return sonde.sow(self.head(jnp.moveaxis(ys, 0, 1)), "logits")


def lstm(seed):
    x = jax.random.normal(jax.random.key(seed), (16, 24, 8))
    labels = jax.random.randint(jax.random.key(seed + 1), (16, 24), 0, 5)

    def loss(model, x, labels):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), labels).mean()

    return nnx.value_and_grad(loss), (Tagger(nnx.Rngs(seed)), x, labels)


MODELS = {"transformer": transformer, "mlp": mlp, "cnn": cnn, "lstm": lstm}
