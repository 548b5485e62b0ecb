"""Programs with one planted bug each, and where the report must name it.

A bug is planted in one of six architectures: attention only (that of `sonde demo`), a transformer of plain functions, a
residual network of Equinox, a convolutional one of Flax, a Keras model, and a recurrent network. Each case says which
sites or parameters would be right; a finding anywhere else does not count.
"""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sonde

os.environ.setdefault("KERAS_BACKEND", "jax")  # read when Keras is imported

LAYERS, WIDTH, HEADS, TOKENS, LENGTH = 5, 32, 4, 29, 20


@dataclasses.dataclass(frozen=True)
class Case:
    """A program with a bug.

    Attributes:
        f: The program.
        args: Its arguments.
        right: Patterns of paths of which one must be named.
        inside: The `inside=` of the report.
    """

    f: Callable[..., Any]
    args: tuple[Any, ...]
    right: tuple[str, ...]
    inside: Any = None


def named_rightly(findings: Any, right: tuple[str, ...]) -> bool:
    """Whether one of the three most serious findings, notes apart, is at a right place."""
    from fnmatch import fnmatchcase

    serious = [f for f in findings if f.severity != "note"][:3]
    return any(fnmatchcase(path, pattern) for f in serious for path in (f.path, *f.also[:1]) for pattern in right)


# ---------------------------------------------------------------------------------------------------------------------
# A transformer of plain functions
# ---------------------------------------------------------------------------------------------------------------------


def _normal(key: Any, shape: tuple[int, ...], fan_in: int) -> Any:
    return jax.random.normal(key, shape) / np.sqrt(fan_in)


def transformer_params(seed: int) -> dict[str, Any]:
    keys = iter(jax.random.split(jax.random.key(seed), 100))
    block = lambda: {
        "scale1": jnp.ones(WIDTH),
        "qkv": _normal(next(keys), (WIDTH, 3 * WIDTH), WIDTH),
        "proj": _normal(next(keys), (WIDTH, WIDTH), WIDTH),
        "scale2": jnp.ones(WIDTH),
        "up": _normal(next(keys), (WIDTH, 4 * WIDTH), WIDTH),
        "up_bias": jnp.zeros(4 * WIDTH),
        "down": _normal(next(keys), (4 * WIDTH, WIDTH), 4 * WIDTH),
    }
    return {
        "embed": jax.random.normal(next(keys), (TOKENS, WIDTH)) * 0.5,
        "position": jax.random.normal(next(keys), (LENGTH, WIDTH)) * 0.2,
        "blocks": [block() for _ in range(LAYERS)],
        "head": _normal(next(keys), (WIDTH, TOKENS), WIDTH),
    }


def _layer_norm(x: Any, scale: Any, axis: int = -1, eps: float = 1e-5) -> Any:
    return (x - x.mean(axis, keepdims=True)) / jnp.sqrt(x.var(axis, keepdims=True) + eps) * scale


def _attention(x: Any, p: Any, bug: str) -> Any:
    batch, length, _ = x.shape
    q, k, v = jnp.split((x @ p["qkv"]).reshape(batch, length, HEADS, -1).transpose(0, 2, 1, 3), 3, -1)
    scale = 1.0 if bug == "scores-not-scaled" else np.sqrt(WIDTH // HEADS)
    scores = q @ k.swapaxes(-1, -2) / scale
    if bug == "scores-times-40":
        scores = scores * 40
    mask = jnp.tril(jnp.ones((length, length), bool))
    if bug == "mask-missing":
        mask = jnp.ones_like(mask)
    if bug == "mask-inverted":
        mask = ~mask
    if bug == "mask-of-scores-only-on-diagonal":
        mask = jnp.eye(length, dtype=bool)
    scores = sonde.sow(jnp.where(mask, scores, -jnp.inf if bug == "mask-inverted" else -1e9), "scores")
    axis = {"softmax-over-queries": -2, "softmax-over-heads": 1, "softmax-over-batch": 0}.get(bug, -1)
    weights = jax.nn.softmax(scores, axis)
    if bug == "softmax-missing-sum":
        weights = jnp.exp(scores - scores.max(-1, keepdims=True))
    if bug == "weights-rounded-to-bfloat-twice":
        weights = weights * 1.5
    weights = sonde.sow(weights, "weights")
    mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, WIDTH)
    return mixed @ p["proj"]


def _block(x: Any, p: Any, bug: str) -> Any:
    eps = 1e4 if bug == "huge-epsilon" else 1e-5
    normed = x if bug == "norm-missing" else _layer_norm(x, p["scale1"], 1 if bug == "norm-over-positions" else -1, eps)
    attended = sonde.sow(_attention(sonde.sow(normed, "norm1"), p, bug), "attn")
    if bug == "stop-gradient":
        attended = jax.lax.stop_gradient(attended)
    x = sonde.sow(attended if bug == "residual-missing" else x + attended, "middle")
    hidden = sonde.sow(_layer_norm(x, p["scale2"]), "norm2") @ p["up"] + p["up_bias"]
    activation = {"relu": jax.nn.relu, "tanh-of-large": lambda h: jnp.tanh(60 * h), "exp": jnp.exp}.get(
        bug, jax.nn.gelu
    )
    hidden = sonde.sow(jax.nn.relu(hidden) if bug == "dead-units" else activation(hidden), "hidden")
    if bug == "dropout-of-everything":
        hidden = hidden * 0.0
    if bug == "half-precision":
        hidden = sonde.sow((hidden * 3e4).astype(jnp.float16), "half").astype(jnp.float32) / 3e4
    down = sonde.sow(hidden @ p["down"], "mlp")
    if bug == "log-of-zero":
        down = sonde.sow(down + 0 * jnp.log(jnp.maximum(hidden[..., :WIDTH], 0)), "logged")
    if bug == "gradient-of-norm-at-zero":
        down = down + sonde.sow(jnp.linalg.norm(0 * down, axis=-1, keepdims=True), "length")
    if bug == "sum-over-positions":
        down = jnp.broadcast_to(sonde.sow(down.sum(1, keepdims=True) * LENGTH, "summed"), down.shape)
    if bug == "output-times-30":
        down = sonde.sow(down * 30, "scaled")
    return sonde.sow(x + down, "out")


def transformer(bug: str = "", layer: int = 2, change: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The gradients of the loss of a small language model."""
    params = transformer_params(0)
    if change is not None:
        change(params)
    tokens = jax.random.randint(jax.random.key(7), (8, LENGTH + 1), 0, TOKENS)

    def loss(params: Any, tokens: Any) -> Any:
        x = sonde.sow(params["embed"][tokens[:, :-1]] + params["position"], "embedded")
        for i, p in enumerate(params["blocks"]):
            with sonde.scope(f"blocks/{i}"):
                x = _block(x, p, bug if i == layer else "")
        logits = sonde.sow(_layer_norm(x, 1.0) @ params["head"], "logits")
        if bug == "softmax-twice":
            logits = sonde.sow(jax.nn.softmax(logits), "probabilities")
        if bug == "temperature":
            logits = sonde.sow(logits * 1e4, "cooled")
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return jax.jit(jax.value_and_grad(loss)), (params, tokens)


def _in_block(bug: str, *right: str, layer: int = 2) -> Callable[[], Case]:
    def make() -> Case:
        f, args = transformer(bug, layer)
        return Case(f, args, tuple(f"blocks/{layer}/{name}" for name in right))

    return make


def _with_params(change: Callable[[dict[str, Any]], Any], *right: str) -> Callable[[], Case]:
    def make() -> Case:
        f, args = transformer(change=change)
        return Case(f, args, right)

    return make


def _set(params: Any, layer: int, name: str, change: Callable[[Any], Any]) -> None:
    params["blocks"][layer][name] = change(params["blocks"][layer][name])


def _same_key(params: dict[str, Any]) -> None:
    params["blocks"] = [jax.tree.map(jnp.copy, params["blocks"][0]) for _ in range(LAYERS)]


def _copied(params: dict[str, Any]) -> None:
    params["blocks"][3] = jax.tree.map(jnp.copy, params["blocks"][2])


TRANSFORMER: dict[str, Callable[[], Case]] = {
    "softmax-over-queries": _in_block("softmax-over-queries", "weights"),
    "softmax-over-heads": _in_block("softmax-over-heads", "weights"),
    "softmax-over-batch": _in_block("softmax-over-batch", "weights"),
    "weights-times-1.5": _in_block("weights-rounded-to-bfloat-twice", "weights"),
    "softmax-missing-sum": _in_block("softmax-missing-sum", "weights"),
    "scores-times-40": _in_block("scores-times-40", "weights", "scores"),
    "mask-missing": _in_block("mask-missing", "weights", "scores"),
    "mask-inverted": _in_block("mask-inverted", "weights", "scores"),
    "mask-only-diagonal": _in_block("mask-of-scores-only-on-diagonal", "weights", "scores"),
    "huge-epsilon": _in_block("huge-epsilon", "norm1"),
    "norm-missing": _in_block("norm-missing", "norm1"),
    "norm-over-positions": _in_block("norm-over-positions", "norm1"),
    "stop-gradient": _in_block("stop-gradient", "norm1", "attn", "scores", "weights"),
    "residual-missing": _in_block("residual-missing", "middle"),
    "tanh-of-large": _in_block("tanh-of-large", "hidden"),
    "exp": _in_block("exp", "hidden", "mlp"),
    "dropout-of-everything": _in_block("dropout-of-everything", "mlp", "hidden"),
    "half-precision": _in_block("half-precision", "half"),
    "log-of-zero": _in_block("log-of-zero", "logged"),
    "gradient-of-norm": _in_block("gradient-of-norm-at-zero", "length", "mlp"),
    "sum-over-positions": _in_block("sum-over-positions", "summed", "out"),
    "output-times-30": _in_block("output-times-30", "scaled", "out"),
    "one-layer-times-30": _with_params(lambda p: _set(p, 3, "down", lambda w: 30 * w), "blocks/3/down", "blocks/3/mlp"),
    "one-layer-by-100": _with_params(lambda p: _set(p, 1, "up", lambda w: w / 100), "blocks/1/up", "blocks/1/hidden"),
    "scale-times-20": _with_params(
        lambda p: _set(p, 3, "scale2", lambda w: 20 * w), "blocks/3/scale2", "blocks/3/norm2"
    ),
    "constant-weights": _with_params(
        lambda p: _set(p, 2, "up", lambda w: jnp.full_like(w, 0.1)), "blocks/2/up", "blocks/2/hidden"
    ),
    "weights-zero": _with_params(lambda p: _set(p, 2, "down", jnp.zeros_like), "blocks/2/down", "blocks/2/mlp"),
    "one-weight-corrupt": _with_params(
        lambda p: _set(p, 1, "proj", lambda w: w.at[3, 4].set(1e3)), "blocks/1/proj", "blocks/1/attn"
    ),
    "same-key": _with_params(_same_key, "blocks/*"),
    "layer-copied": _with_params(_copied, "blocks/2/*", "blocks/3/*"),
    "positions-zero": _with_params(lambda p: p.update(position=jnp.zeros_like(p["position"])), "position"),
    "embedding-collapsed": _with_params(
        lambda p: p.update(embed=jnp.broadcast_to(p["embed"][:1], p["embed"].shape)), "embed", "embedded"
    ),
    "embedding-nan": _with_params(lambda p: p.update(embed=p["embed"].at[3].set(jnp.nan)), "embed", "embedded"),
    "temperature": lambda: Case(*transformer("temperature"), ("cooled",)),
    "softmax-twice": lambda: Case(*transformer("softmax-twice"), ("probabilities",)),
}


# ---------------------------------------------------------------------------------------------------------------------
# The demo's model: attention only
# ---------------------------------------------------------------------------------------------------------------------


def demo(change: Callable[[Any], Any], *right: str) -> Callable[[], Case]:
    """A training step of the demo's model, changed."""

    def make() -> Case:
        from sonde import nnx
        from sonde.demo.defect import training_step
        from sonde.demo.model import AttentionOnly
        from sonde.demo.sequences import repeated
        from sonde.demo.training import LENGTH as length
        from sonde.demo.training import TOKENS as tokens

        model = AttentionOnly(tokens, length, rngs=nnx.Rngs(0))
        change(model)
        return Case(training_step, (model, *repeated(jax.random.key(1), 8)), right)

    return make


def _scale_variable(name: str, layer: int, factor: float) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        variable = getattr(model.layers[layer], name)
        variable[...] = variable[...] * factor

    return change


DEMO: dict[str, Callable[[], Case]] = {
    "demo-query-times-30": demo(
        _scale_variable("query", 1, 30.0), "layers/1/query", "layers/1/scores", "layers/1/weights"
    ),
    "demo-out-times-30": demo(_scale_variable("out", 0, 30.0), "layers/0/out", "layers/0/heads/*", "stream/0"),
    "demo-value-by-100": demo(_scale_variable("value", 0, 0.01), "layers/0/value", "layers/0/heads/*"),
    "demo-key-zero": demo(_scale_variable("key", 1, 0.0), "layers/1/key", "layers/1/scores", "layers/1/weights"),
}


# ---------------------------------------------------------------------------------------------------------------------
# Equinox: a residual network
# ---------------------------------------------------------------------------------------------------------------------


def equinox(
    change: Callable[[Any], Any], *right: str, inputs: Callable[[Any], Any] = lambda x: x
) -> Callable[[], Case]:
    """The gradients of a residual network of Equinox, changed."""

    def make() -> Case:
        import equinox as eqx

        class Block(eqx.Module):
            norm: eqx.nn.LayerNorm
            up: eqx.nn.Linear
            down: eqx.nn.Linear

            def __call__(self, x: Any) -> Any:
                return x + self.down(jax.nn.relu(self.up(self.norm(x))))

        class Net(eqx.Module):
            first: eqx.nn.Linear
            blocks: list[Block]
            head: eqx.nn.Linear

            def __call__(self, x: Any) -> Any:
                x = self.first(x)
                for block in self.blocks:
                    x = block(x)
                return self.head(x)

        keys = iter(jax.random.split(jax.random.key(0), 30))
        linear = lambda n, m: eqx.nn.Linear(n, m, key=next(keys))
        blocks = [Block(eqx.nn.LayerNorm(24), linear(24, 64), linear(64, 24)) for _ in range(5)]
        net = Net(linear(6, 24), blocks, linear(24, 3))
        net = change(net)
        x = inputs(jax.random.normal(jax.random.key(1), (96, 6)))
        labels = jax.random.randint(jax.random.key(2), (96,), 0, 3)

        @eqx.filter_jit
        @eqx.filter_value_and_grad
        def step(net: Any, x: Any, labels: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(net)(x), labels).mean()

        return Case(step, (net, x, labels), right, net)

    return make


def _leaf(where: Callable[[Any], Any], change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(net: Any) -> Any:
        import equinox as eqx

        return eqx.tree_at(where, net, replace_fn=change)

    return changed


EQUINOX: dict[str, Callable[[], Case]] = {
    "equinox-layer-times-30": equinox(
        _leaf(lambda n: n.blocks[2].down.weight, lambda w: 30 * w), "blocks/2/down/*", "blocks/2/out"
    ),
    "equinox-layer-by-100": equinox(_leaf(lambda n: n.blocks[1].up.weight, lambda w: w / 100), "blocks/1/up/*"),
    "equinox-dead-bias": equinox(
        _leaf(lambda n: n.blocks[3].up.bias, lambda b: b - 50), "blocks/3/up/*", "blocks/3/down/*"
    ),
    "equinox-feature-times-1000": equinox(lambda n: n, "x", "in", "first/in", inputs=lambda x: x.at[:, 2].mul(1000)),
    "equinox-inputs-bytes": equinox(
        lambda n: n, "x", "in", "first/in", inputs=lambda x: jnp.clip(jnp.round(x * 60 + 128), 0, 255)
    ),
    "equinox-inputs-zero": equinox(lambda n: n, "x", "in", "first/in", inputs=jnp.zeros_like),
    "equinox-one-nan": equinox(lambda n: n, "x", "in", "first/in", inputs=lambda x: x.at[17, 3].set(jnp.nan)),
}


# ---------------------------------------------------------------------------------------------------------------------
# Flax nnx: a convolutional network
# ---------------------------------------------------------------------------------------------------------------------


def flax(
    change: Callable[[Any], Any], *right: str, pixels: float = 1.0, activation: Any = jax.nn.relu
) -> Callable[[], Case]:
    """The gradients of a convolutional network of Flax, changed."""

    def make() -> Case:
        from flax import nnx

        class Stage(nnx.Module):
            def __init__(self, n: int, m: int, rngs: Any) -> None:
                self.conv = nnx.Conv(n, m, (3, 3), rngs=rngs)
                self.norm = nnx.BatchNorm(m, rngs=rngs)

            def __call__(self, x: Any) -> Any:
                return activation(self.norm(self.conv(x)))

        class Net(nnx.Module):
            def __init__(self, rngs: Any) -> None:
                self.stages = nnx.List([Stage(n, 8, rngs) for n in (1, 8, 8, 8)])
                self.head = nnx.Linear(8, 5, rngs=rngs)

            def __call__(self, x: Any) -> Any:
                for stage in self.stages:
                    x = stage(x)
                return self.head(x.mean((1, 2)))

        net = Net(nnx.Rngs(0))
        change(net)
        images = jax.random.uniform(jax.random.key(1), (16, 12, 12, 1)) * pixels
        labels = jax.random.randint(jax.random.key(2), (16,), 0, 5)

        @nnx.jit
        def step(net: Any, images: Any, labels: Any) -> Any:
            loss = lambda net: optax.softmax_cross_entropy_with_integer_labels(net(images), labels).mean()
            return nnx.value_and_grad(loss)(net)

        return Case(step, (net, images, labels), right, net)

    return make


def _assign(where: Callable[[Any], Any], change: Callable[[Any], Any]) -> Callable[[Any], None]:
    def changed(net: Any) -> None:
        variable = where(net)
        variable[...] = change(variable[...])

    return changed


FLAX: dict[str, Callable[[], Case]] = {
    "flax-kernel-times-30": flax(_assign(lambda n: n.stages[2].conv.kernel, lambda w: 30 * w), "stages/2/conv/*"),
    "flax-kernel-by-100": flax(_assign(lambda n: n.stages[1].conv.kernel, lambda w: w / 100), "stages/1/conv/*"),
    "flax-scale-zero": flax(
        _assign(lambda n: n.stages[2].norm.scale, lambda s: 0 * s), "stages/2/norm/*", "stages/2/out"
    ),
    "flax-pixels-not-scaled": flax(lambda n: None, "images", "in", "stages/0/in", "stages/0/conv/in", pixels=255.0),
    "flax-dead-bias": flax(
        _assign(lambda n: n.stages[3].norm.bias, lambda b: b - 9.0), "stages/3/norm/*", "stages/3/out", "head/*"
    ),
}


# ---------------------------------------------------------------------------------------------------------------------
# Keras
# ---------------------------------------------------------------------------------------------------------------------


def keras(change: Callable[[Any], Any], *right: str, offset: float = 0.0) -> Callable[[], Case]:
    """A forward pass and a loss of a Keras model, changed."""

    def make() -> Case:
        import keras as library

        library.utils.set_random_seed(0)
        layers = [library.layers.Dense(48, activation="relu", name=f"dense_{i}") for i in range(4)]
        model = library.Sequential([library.layers.Input((10,)), *layers, library.layers.Dense(4, name="head")])
        change(model)
        x = jax.random.normal(jax.random.key(1), (128, 10)) + offset
        labels = jax.random.randint(jax.random.key(2), (128,), 0, 4)
        weights = [v.value for v in model.trainable_variables]
        state = [v.value for v in model.non_trainable_variables]

        def step(weights: Any, x: Any, labels: Any) -> Any:
            def loss(weights: Any) -> Any:
                logits, _ = model.stateless_call(weights, state, x)
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

            return jax.value_and_grad(loss)(weights)

        return Case(jax.jit(step), (weights, x, labels), right, model)

    return make


def _keras_weight(layer: str, number: int, change: Callable[[Any], Any]) -> Callable[[Any], None]:
    def changed(model: Any) -> None:
        variable = model.get_layer(layer).weights[number]
        variable.assign(change(variable.value))

    return changed


KERAS: dict[str, Callable[[], Case]] = {
    "keras-layer-times-30": keras(_keras_weight("dense_2", 0, lambda w: 30 * w), "*dense_2/*"),
    "keras-layer-by-100": keras(_keras_weight("dense_1", 0, lambda w: w / 100), "*dense_1/*"),
    "keras-dead-bias": keras(_keras_weight("dense_1", 1, lambda b: b - 20), "*dense_1/*"),
    "keras-inputs-far-from-zero": keras(lambda m: None, "x", "in", "dense_0/in", offset=300.0),
}


# ---------------------------------------------------------------------------------------------------------------------
# A recurrent network
# ---------------------------------------------------------------------------------------------------------------------


def recurrent(*right: str, gain: float = 1.0, steps: int = 24, decay: float = 0.0) -> Callable[[], Case]:
    """The gradients of a loop over time."""

    def make() -> Case:
        key, other, third = jax.random.split(jax.random.key(3), 3)
        params = {
            "recurrent": gain * jnp.linalg.qr(jax.random.normal(key, (16, 16)))[0],
            "input": jax.random.normal(other, (4, 16)) * 0.5,
        }
        x = jax.random.normal(third, (steps, 8, 4))

        def loss(params: Any, x: Any) -> Any:
            def step(h: Any, x: Any) -> Any:
                h = h @ params["recurrent"] + x @ params["input"]
                h = sonde.sow(h if gain > 1 else h * (1 - decay), "state")
                return h, None

            h, _ = jax.lax.scan(step, jnp.zeros((8, 16)), x)
            return jnp.mean(h**2)

        return Case(jax.jit(jax.value_and_grad(loss)), (params, x), right)

    return make


RECURRENT: dict[str, Callable[[], Case]] = {
    "recurrent-explodes": recurrent("state", "recurrent", gain=2.5),
    "recurrent-forgets": recurrent("state", "recurrent", decay=0.8),
}

KNOWN_MISSES = ("positions-zero", "embedding-collapsed", "residual-missing", "temperature")
"""Kinds that the report does not name: each may be meant."""
ALL: dict[str, Callable[[], Case]] = {**TRANSFORMER, **DEMO, **EQUINOX, **FLAX, **KERAS, **RECURRENT}


def _nothing(_: Any) -> None:
    pass


HEALTHY: dict[str, Callable[[], Case]] = {
    "transformer": lambda: Case(*transformer(), ()),
    "demo": demo(_nothing),
    "equinox": equinox(lambda net: net),
    "flax": flax(_nothing),
    "flax-tanh": flax(_nothing, activation=jnp.tanh),
    "keras": keras(_nothing),
    "recurrent": recurrent(),
}
"""The same architectures without a bug."""
