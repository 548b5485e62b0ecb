"""What is done again and again in a session, for `test_leaks.py`: each time with fresh functions, methods or models."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import sonde
import sonde.errors
from sonde import linen, nnx, report

X = np.ones((2, 2), np.float32)


def marked(x: Any) -> Any:
    return jnp.sum(sonde.sow(jnp.sin(x), "h"))


jitted = jax.jit(marked)


class Owner:
    """An object with an array."""

    def __init__(self) -> None:
        self.scale = jnp.ones(2)

    def method(self, x: Any) -> Any:
        return marked(x * self.scale)


class Model(nnx.Module):
    def __init__(self) -> None:
        self.layer = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return self.layer(sonde.sow(x * 2, "h"))


class Layer(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Dense(2)(x)
        self.sow("intermediates", "h", x)
        return x


def without_result() -> None:
    try:
        sonde.capture(lambda x: marked(x), "no such site")(X)
    except sonde.errors.NoSuchSiteError:
        pass


def nnx_step() -> None:
    model = Model()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda model: jnp.sum(model(x) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    jitted = nnx.jit(step)
    for _ in range(2):
        jitted(model, optimizer, X)


def linen_step() -> None:
    layer = Layer()
    variables = layer.init(jax.random.key(0), X)
    loss = lambda params: jnp.sum(layer.apply({"params": params}, X) ** 2)
    step = jax.jit(lambda params: jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params)))
    for _ in range(2):
        step(variables["params"])


def linen_captured() -> None:
    layer = Layer()
    layer.apply(layer.init(jax.random.key(0), X), X, capture_intermediates=True)


CASES: dict[str, Callable[[int], Any]] = {
    "capture of a lambda": lambda i: sonde.capture(lambda x: marked(x) * i)(X),
    "capture of a jitted function": lambda i: sonde.capture(jitted)(X),
    "capture of a fresh jitted function": lambda i: sonde.capture(jax.jit(lambda x: marked(x) * i))(X),
    "a jitted capture": lambda i: jax.jit(sonde.capture(lambda x: marked(x) * i))(X),
    "capture of a bound method": lambda i: sonde.capture(Owner().method)(X),
    "a capture that fails": lambda i: without_result(),
    "an edit": lambda i: sonde.edit(jitted, {"h": lambda h: h * 2})(X),
    "a search for NaN": lambda i: sonde.first_nonfinite(lambda x: marked(x) * i)(X),
    "a report": lambda i: report.examine(lambda x: marked(x) * i)(X),
    "capture of a model": lambda i: sonde.capture(Model())(X),
    "nnx.capture": lambda i: nnx.capture(Model(), nnx.Intermediate)(X),
    "an nnx step": lambda i: nnx_step(),
    "linen's capture_intermediates": lambda i: linen_captured(),
    "a linen step": lambda i: linen_step(),
}


class Held(NamedTuple):
    """What a process holds on to."""

    objects: int
    arrays: int
    programs: int


def held() -> Held:
    for _ in range(3):
        gc.collect()
    programs = jax.devices()[0].client.live_executables()
    return Held(len(gc.get_objects()), len(jax.live_arrays()), len(programs))


def growth(step: Callable[[int], Any], times: int) -> Held:
    """How much more is held after doing something many times than after a few."""
    for i in range(8):  # until what is kept once for all is kept
        step(i)
    before = held()
    for i in range(times):
        step(i)
    return Held(*[b - a for a, b in zip(before, held())])
