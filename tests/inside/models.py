"""Small models of six libraries, from their own layers. `seen` marks by hand what is compared; it is off otherwise.

Every function returns the model for `inside=`, its parameters, a function of parameters and input, and an input.
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import warnings

import jax
import jax.numpy as jnp

import sonde

BY_HAND = [False]
X = jax.random.normal(jax.random.key(7), (2, 6, 8))


def seen(value, name):
    """The same value; a site if the model is to be the one that was changed by hand."""
    return sonde.sow(value, name) if BY_HAND[0] else value


def equinox(kind):
    import equinox as eqx

    keys = iter(jax.random.split(jax.random.key(0), 9))

    class Transformer(eqx.Module):
        norm: eqx.nn.LayerNorm
        attention: eqx.nn.MultiheadAttention
        mlp: eqx.nn.MLP

        def __call__(self, x):
            hidden = seen(jax.vmap(self.norm)(x), "hidden")
            x = x + seen(self.attention(hidden, hidden, hidden), "attention/out")
            return x + seen(jax.vmap(self.mlp)(x), "mlp/out")

    class Convolutional(eqx.Module):
        layers: list

        def __call__(self, x):
            for i, layer in enumerate(self.layers):
                hidden = seen(x.T * 2.0, "hidden")
                x = jax.nn.relu(seen(layer(hidden), f"layers/{i}/out").T)
            return x

    class Recurrent(eqx.Module):
        cell: eqx.nn.GRUCell

        def __call__(self, x):
            def step(h, v):
                hidden = seen(jnp.tanh(v), "hidden")
                new = seen(self.cell(hidden, h), "cell/out")
                return new, new

            return jax.lax.scan(step, jnp.zeros(8), x)[1]

    model = {
        "transformer": lambda: Transformer(
            eqx.nn.LayerNorm(8),
            eqx.nn.MultiheadAttention(2, 8, key=next(keys)),
            eqx.nn.MLP(8, 8, 16, 1, key=next(keys)),
        ),
        "convolutional": lambda: Convolutional([eqx.nn.Conv1d(8, 8, 3, padding=1, key=next(keys)) for _ in range(2)]),
        "recurrent": lambda: Recurrent(eqx.nn.GRUCell(8, 8, key=next(keys))),
    }[kind]()
    params, static = eqx.partition(model, eqx.is_inexact_array)
    return model, params, lambda p, x: eqx.combine(p, static)(x), X[0]


def flax_nnx(kind):
    from flax import nnx

    rngs = nnx.Rngs(0)

    class Transformer(nnx.Module):
        def __init__(self):
            self.norm = nnx.LayerNorm(8, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
            self.mlp = nnx.Linear(8, 8, rngs=rngs)

        def __call__(self, x):
            hidden = seen(self.norm(x), "hidden")
            x = x + seen(self.attention(hidden), "attention/out")
            return x + seen(self.mlp(x), "mlp/out")

    class Convolutional(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Conv(8, 8, (3,), rngs=rngs) for _ in range(2)])

        def __call__(self, x):
            for i, layer in enumerate(self.layers):
                hidden = seen(x * 2.0, "hidden")
                x = nnx.relu(seen(layer(hidden), f"layers/{i}/out"))
            return x

    class Recurrent(nnx.Module):
        def __init__(self):
            self.cell = nnx.GRUCell(8, 8, rngs=rngs)

        def __call__(self, x):
            def step(h, v):
                hidden = seen(jnp.tanh(v), "hidden")
                new = seen(self.cell(h, hidden)[0], "cell/out")
                return new, new

            return jax.lax.scan(step, jnp.zeros((2, 8)), x.swapaxes(0, 1))[1]

    model = {"transformer": Transformer, "convolutional": Convolutional, "recurrent": Recurrent}[kind]()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    return model, params, lambda p, x: nnx.merge(graph, p, rest)(x), X


def flax_linen(kind):
    import flax.linen as nn

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, x):
            hidden = seen(nn.LayerNorm()(x), "hidden")
            x = x + seen(nn.MultiHeadDotProductAttention(2, name="attention")(hidden), "attention/out")
            return x + seen(nn.Dense(8, name="mlp")(x), "mlp/out")

    class Convolutional(nn.Module):
        @nn.compact
        def __call__(self, x):
            for i in range(2):
                hidden = seen(x * 2.0, "hidden")
                x = nn.relu(seen(nn.Conv(8, (3,), name=f"layers_{i}")(hidden), f"layers_{i}/out"))
            return x

    class Recurrent(nn.Module):
        @nn.compact
        def __call__(self, x):
            hidden = seen(jnp.tanh(x), "hidden")
            return seen(nn.RNN(nn.GRUCell(8), name="rnn")(hidden), "rnn/out")

    model = {"transformer": Transformer, "convolutional": Convolutional, "recurrent": Recurrent}[kind]()
    return model, model.init(jax.random.key(0), X), model.apply, X


def haiku(kind):
    import haiku as hk

    def transformer(x):
        hidden = seen(hk.LayerNorm(-1, True, True)(x), "hidden")
        attention = hk.MultiHeadAttention(
            2, 4, w_init=hk.initializers.VarianceScaling(), model_size=8, name="attention"
        )
        x = x + seen(attention(hidden, hidden, hidden), "attention/out")
        return x + seen(hk.nets.MLP([16, 8], name="mlp")(x), "mlp/out")

    def convolutional(x):
        for i in range(2):
            hidden = seen(x * 2.0, "hidden")
            x = jax.nn.relu(seen(hk.Conv1D(8, 3, name=f"layers_{i}")(hidden), f"layers_{i}/out"))
        return x

    def recurrent(x):
        core = hk.GRU(8, name="cell")

        def step(h, v):
            hidden = seen(jnp.tanh(v), "hidden")
            new = seen(core(hidden, h)[0], "cell/out")
            return new, new

        return hk.scan(step, jnp.zeros((2, 8)), x.swapaxes(0, 1))[1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = hk.transform({"transformer": transformer, "convolutional": convolutional, "recurrent": recurrent}[kind])
        return model, model.init(jax.random.key(0), X), lambda p, x: model.apply(p, None, x), X


def keras(kind):
    import keras

    class Transformer(keras.Model):
        def __init__(self):
            super().__init__()
            self.norm = keras.layers.LayerNormalization()
            self.attention = keras.layers.MultiHeadAttention(2, 4)
            self.mlp = keras.layers.Dense(8)

        def call(self, x):
            hidden = seen(self.norm(x), "hidden")
            x = x + seen(self.attention(hidden, hidden), "attention/out")
            return x + seen(self.mlp(x), "mlp/out")

    class Convolutional(keras.Model):
        def __init__(self):
            super().__init__()
            self.stack = [keras.layers.Conv1D(8, 3, padding="same") for _ in range(2)]

        def call(self, x):
            for i, layer in enumerate(self.stack):
                hidden = seen(x * 2.0, "hidden")
                x = keras.ops.relu(seen(layer(hidden), f"stack/{i}/out"))
            return x

    class Recurrent(keras.Model):
        def __init__(self):
            super().__init__()
            self.rnn = keras.layers.GRU(8, return_sequences=True)

        def call(self, x):
            hidden = seen(keras.ops.tanh(x), "hidden")
            return seen(self.rnn(hidden), "rnn/out")

    model = {"transformer": Transformer, "convolutional": Convolutional, "recurrent": Recurrent}[kind]()
    model(X)
    rest = [v.value for v in model.non_trainable_variables]
    return model, [v.value for v in model.trainable_variables], lambda p, x: model.stateless_call(p, rest, x)[0], X


def penzai(kind):
    import dataclasses

    from penzai import pz

    keys = iter(jax.random.split(jax.random.key(0), 9))

    @pz.pytree_dataclass
    class Seen(pz.nn.Layer):
        name: str = dataclasses.field(metadata={"pytree_node": False})

        def __call__(self, x, **_):
            return _seen_named(x, self.name)

    @pz.pytree_dataclass
    class Windows(pz.nn.Layer):
        """Three neighbors of every position, for a convolution."""

        def __call__(self, x, **_):
            hidden = seen(x.unwrap("t", "f") * 2.0, "hidden")
            shifted = [jnp.roll(hidden, n, 0) for n in (-1, 0, 1)]
            return pz.nx.wrap(jnp.concatenate(shifted, -1)).tag("t", "w")

    @pz.pytree_dataclass
    class Scanned(pz.nn.Layer):
        """A recurrent model with a layer as its cell."""

        cell: pz.nn.Layer

        def __call__(self, x, **_):
            def step(h, v):
                hidden = seen(jnp.tanh(v), "hidden")
                both = pz.nx.wrap(jnp.concatenate([h, hidden])).tag("hf")
                new = jnp.tanh(_seen_named(self.cell(both), "cell/out").unwrap("f"))
                return new, new

            return pz.nx.wrap(jax.lax.scan(step, jnp.zeros(8), x.unwrap("t", "f"))[1]).tag("t", "f")

    def linear(inputs, outputs):
        key = next(keys)
        return pz.nn.Linear.from_config(f"w{jax.random.key_data(key)[0]}", key, inputs, outputs)

    if kind == "transformer":
        heads = {"h": 2, "p": 4}
        attention = pz.nn.Attention(
            input_to_query=pz.nn.Sequential([linear({"f": 8}, heads), Seen("hidden")]),
            input_to_key=pz.nn.Sequential([linear({"f": 8}, heads), pz.nn.RenameAxes("t", "s")]),
            input_to_value=pz.nn.Sequential([linear({"f": 8}, heads), pz.nn.RenameAxes("t", "s")]),
            query_key_to_attn=pz.nn.Sequential(
                [
                    pz.nn.NamedEinsum(
                        ({"t": "t", "h": "h", "p": "p"}, {"s": "s", "h": "h", "p": "p"}), {"t": "t", "h": "h", "s": "s"}
                    ),
                    pz.nn.Softmax("s"),
                ]
            ),
            attn_value_to_output=pz.nn.Sequential(
                [
                    pz.nn.NamedEinsum(
                        ({"t": "t", "h": "h", "s": "s"}, {"s": "s", "h": "h", "p": "p"}), {"t": "t", "h": "h", "p": "p"}
                    ),
                    linear(heads, {"f": 8}),
                ]
            ),
        )
        model = pz.nn.Sequential([attention, Seen("sublayers/0/out"), linear({"f": 8}, {"f": 8})])
    elif kind == "convolutional":
        relu = pz.nn.Elementwise(jax.nn.relu)
        first, second = linear({"w": 24}, {"f": 8}), linear({"w": 24}, {"f": 8})
        model = pz.nn.Sequential([Windows(), first, relu, Windows(), second, Seen("sublayers/4/out"), relu])
    else:
        model = Scanned(linear({"hf": 16}, {"f": 8}))
    model, params = pz.unbind_params(model, freeze=True)
    return model, params, lambda p, x: pz.bind_variables(model, p)(pz.nx.wrap(x).tag("t", "f")).unwrap("t", "f"), X[0]


def _seen_named(x, name):
    from penzai import pz

    if not BY_HAND[0]:
        return x
    return jax.tree.map(lambda v: seen(v, name), x) if isinstance(x, pz.nx.NamedArray) else x


LIBRARIES = {
    "equinox": equinox,
    "flax_nnx": flax_nnx,
    "flax_linen": flax_linen,
    "haiku": haiku,
    "keras": keras,
    "penzai": penzai,
}
SITES = {
    ("penzai", "transformer"): "sublayers/0/out",
    ("penzai", "convolutional"): "sublayers/4/out",
    ("haiku", "convolutional"): "layers_1/out",
    ("flax_linen", "convolutional"): "layers_1/out",
    ("keras", "convolutional"): "stack/1/out",
    ("flax_linen", "recurrent"): "rnn/out",
    ("keras", "recurrent"): "rnn/out",
}
# A variable of the code around the modules, in all models; for Penzai's transformer one in the library's own code.
VARIABLES = {("penzai", "transformer"): "**/Attention.__call__/query"}
MORE = {("penzai", "transformer"): ["penzai.nn.attention:Attention"]}
KINDS = {"transformer": "attention/out", "convolutional": "layers/1/out", "recurrent": "cell/out"}
