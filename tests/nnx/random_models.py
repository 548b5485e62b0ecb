"""Random nnx models, and random things that programs do with them, as source for either library.

`program(nnx, seed)` draws from the seed alone, never from the library, so that both run the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tests.linen.random_modules import Draw

FEATURES = 4
SHAPE = (2, 6, FEATURES)  # batch, time, features


def _dtypes(draw: Draw) -> dict[str, Any]:
    drawn = {
        "dtype": draw.pick(None, None, jnp.float32, jnp.bfloat16),
        "param_dtype": draw.pick(jnp.float32, jnp.bfloat16),
    }
    return {"param_dtype": jnp.float64} if draw.precise else drawn


def _layer(nnx: Any, draw: Draw, rngs: Any) -> Any:
    """A layer from features to features."""
    which, kind = draw.number(0, 13), {**_dtypes(draw), "rngs": rngs}
    wide = {**kind, "param_dtype": jnp.float64 if draw.precise else jnp.float32}
    if which == 0:
        return nnx.Linear(FEATURES, FEATURES, use_bias=draw.flag(), **kind)
    if which == 1:
        return nnx.LinearGeneral(FEATURES, FEATURES, axis=draw.pick(-1, (-1,)), use_bias=draw.flag(), **kind)
    if which == 2:
        return nnx.Einsum(
            draw.pick("btd,de->bte", "...d,de->...e"), (FEATURES,) * 2, draw.pick((FEATURES,), None), **kind
        )
    if which == 3:
        options = {"momentum": draw.pick(0.9, 0.5), "use_bias": draw.flag(), "use_scale": draw.flag()}
        return nnx.BatchNorm(FEATURES, **options, **kind)
    if which == 4:
        norm = draw.pick(nnx.LayerNorm, nnx.RMSNorm)
        return norm(FEATURES, epsilon=draw.pick(1e-6, 1e-3), use_scale=draw.flag(), **kind)
    if which == 5:
        return nnx.GroupNorm(FEATURES, num_groups=2, use_bias=draw.flag(), **kind)
    if which == 6:
        return nnx.Dropout(draw.pick(0.1, 0.5, 0.0), broadcast_dims=draw.pick((), (0,), (-1,)), rngs=rngs)
    if which == 7:
        padding = draw.pick("SAME", "CIRCULAR", "CAUSAL", ((1, 1),))
        return nnx.Conv(FEATURES, FEATURES, draw.pick((3,), 3), padding=padding, use_bias=draw.flag(), **kind)
    if which == 8:
        options = {"dropout_rate": draw.pick(0.0, 0.3), "normalize_qk": draw.flag(), "decode": False}
        return nnx.MultiHeadAttention(2, FEATURES, **options, **kind)
    if which == 9:
        cell = draw.pick(nnx.LSTMCell, nnx.GRUCell, nnx.SimpleCell, nnx.OptimizedLSTMCell)
        return nnx.RNN(cell(FEATURES, FEATURES, **wide), reverse=draw.flag(), rngs=rngs)
    if which == 10:
        base = nnx.Linear(FEATURES, FEATURES, rngs=rngs)
        return nnx.LoRA(FEATURES, 2, FEATURES, base_module=base, **wide)
    if which == 11:
        return nnx.Sequential(nnx.Linear(FEATURES, FEATURES, **kind), draw.pick(nnx.relu, nnx.gelu, nnx.tanh))
    if which == 12:
        return nnx.Embed(7, FEATURES, **kind)
    return draw.pick(nnx.relu, nnx.silu, nnx.elu, nnx.softplus)


def _call(nnx: Any, layer: Any, x: Any) -> Any:
    if isinstance(layer, nnx.Embed):
        return layer.attend(x)[..., :FEATURES] + layer(jnp.arange(x.shape[-2]) % 7)
    return layer(x)


def _model(nnx: Any, draw: Draw, rngs: Any) -> Any:
    counts, noisy, shares, depth = draw.flag(), draw.flag(), draw.flag(), draw.number(1, 3)
    in_dict = draw.flag(0.3)

    class Model(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            layers = [_layer(nnx, draw, rngs) for _ in range(depth)]
            layers += layers[:1] if shares else []
            self.layers = nnx.Dict({f"l{i}": x for i, x in enumerate(layers)}) if in_dict else nnx.List(layers)
            self.count = nnx.BatchStat(jnp.zeros((), jnp.int32)) if counts else None
            self.rngs = rngs.fork() if noisy else None
            self.scale = nnx.Param(jnp.ones(FEATURES))

        def __call__(self, x: Any) -> Any:
            before = x
            for layer in self.layers.values() if in_dict else self.layers:
                x = _call(nnx, layer, x)
            if counts:
                self.count[...] += 1
            if noisy:
                x = x + 0.1 * self.rngs.dropout.normal(x.shape).astype(x.dtype)
            return (x * self.scale[...]).astype(before.dtype)

    return Model(rngs)


def _steps(nnx: Any, draw: Draw, rngs: Any) -> list[Callable[[Any, Any], Any]]:
    """What a program may do with a model: functions of it and of an input that return another input."""
    wrap = draw.pick(nnx.jit, nnx.remat, lambda f: f)
    length, which_branch = draw.number(1, 3), draw.number(0, 2)
    transform = draw.pick(optax.sgd(0.1), optax.adam(0.01), optax.sgd(0.1, momentum=0.9))
    of_model = nnx.StateAxes({nnx.RngState: None, ...: None})
    train = draw.flag()
    carried = nnx.StateAxes({(nnx.RngState, nnx.BatchStat): nnx.Carry, ...: None})

    def loop(model: Any, x: Any) -> Any:
        def body(model: Any, x: Any, _: Any) -> Any:
            return model(x), x.mean()

        run = nnx.scan(body, in_axes=(carried, nnx.Carry, 0), out_axes=(nnx.Carry, 0))
        x, means = run(model, x, jnp.arange(length))
        return x + means.sum().astype(x.dtype)

    def update(model: Any, x: Any) -> Any:
        optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)

        def loss(model: Any) -> Any:
            y = model(x)
            return (y.astype(jnp.float32) ** 2).mean(), y

        @wrap
        def step(model: Any, optimizer: Any) -> Any:
            (_, y), grads = nnx.value_and_grad(loss, has_aux=True)(model)
            optimizer.update(model, grads)
            return y

        return step(model, optimizer)

    def ensemble(model: Any, x: Any) -> Any:
        @nnx.split_rngs(splits=length)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs: Any) -> Any:
            return nnx.Linear(FEATURES, FEATURES, rngs=rngs)

        layers = make(rngs)
        if draw.precise:
            return x
        run = nnx.scan(lambda x, layer: layer(x).astype(x.dtype), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return run(model(x), layers)

    def mapped(model: Any, x: Any) -> Any:
        model.eval()
        y = nnx.vmap(lambda model, x: model(x), in_axes=(of_model, 0))(model, jnp.stack([x, x * 2])) if not train else x
        model.train()
        return y.mean(0).astype(x.dtype) if y.ndim > x.ndim else y

    def surgery(model: Any, x: Any) -> Any:
        graphdef, params, rest = nnx.split(model, nnx.Param, ...)
        params = jax.tree.map(lambda p: p * 0.5, params)
        other = nnx.merge(graphdef, params, rest)
        y = other(x)
        nnx.update(model, nnx.state(other, nnx.BatchStat), params)
        return y + nnx.clone(model)(x)

    def change(model: Any, x: Any) -> Any:
        @nnx.jit
        def run(model: Any, x: Any) -> Any:
            model.extra = nnx.Param(jnp.ones(FEATURES))
            model.scale[...] *= 2
            return model(x) * model.extra[...].astype(x.dtype)

        y = run(model, x)
        del model.extra
        return y

    branches = [lambda model, x, i=i: model(x) * (i + 1) for i in range(3)]
    return [
        lambda model, x: wrap(lambda model, x: model(x))(model, x),
        lambda model, x: nnx.cond(x.sum() > 0, lambda m, x: m(x), lambda m, x: m(x) * 2, model, x),
        lambda model, x: nnx.switch(which_branch, branches, model, x),
        lambda model, x: nnx.fori_loop(0, length, lambda i, c: (c[0], c[0](c[1])), (model, x))[1],
        lambda model, x: nnx.while_loop(lambda c: c[2] < length, lambda c: (c[0], c[0](c[1]), c[2] + 1), (model, x, 0))[
            1
        ],
        lambda model, x: x + nnx.grad(lambda m, x: m(x).astype(jnp.float32).sum(), argnums=1)(model, x),
        loop,
        update,
        ensemble,
        mapped,
        surgery,
        change,
    ]


def program(nnx: Any, seed: int, *, precise: bool) -> Any:
    """What a model does: its initial values, the values between the steps, its state at the end. One traced program."""

    @jax.jit
    def run(x: Any) -> dict[str, Any]:
        draw = Draw(seed, precise)
        rngs = nnx.Rngs(draw.number(0, 3), dropout=draw.number(0, 3))
        model = _model(nnx, draw, rngs)
        model.train()  # attention must be told
        plain = lambda: nnx.to_pure_dict(nnx.state(model, nnx.Not(nnx.RngKey)))
        result: dict[str, Any] = {"init": plain()}
        for i in range(draw.number(1, 3)):
            x = draw.pick(*_steps(nnx, draw, rngs))(model, x).astype(x.dtype)
            result[f"step {i}"] = x
        return {**result, "final": plain()}

    return run.trace(inputs(seed, precise=precise))


def inputs(seed: int, *, precise: bool) -> Any:
    """What it is called with."""
    dtype = Draw(seed, precise).pick(jnp.float32, jnp.float32, jnp.bfloat16)
    return jnp.asarray(np.random.default_rng(seed).normal(size=SHAPE), jnp.float64 if precise else dtype)
