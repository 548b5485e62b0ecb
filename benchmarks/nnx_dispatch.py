"""Calls of `nnx.jit` against `jax.jit` over a flat list of the same arrays.

The computation is next to nothing (a chain of tiny layers; a train step that only replaces its state), so only the cost
of calling is compared: the time until the call returns.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from measure import Row, interleaved, main
from sonde import nnx

SIZES = (10, 100, 1000)
ALIKE = 3
FORWARD = {10: 1.2, 100: 1.15, 1000: 1.15}
TRAIN = {10: 1.15, 100: 1.1, 1000: 1.1}


class Layer(nnx.Module):
    def __init__(self) -> None:
        self.kernel = nnx.Param(jnp.eye(4))
        self.bias = nnx.Param(jnp.zeros(4))
        self.features = 4

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel + self.bias


class Chain(nnx.Module):
    def __init__(self, n: int) -> None:
        self.layers = nnx.List([Layer() for _ in range(n)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = layer(x)
        return x


class Moments(nnx.Module):
    """The state of an optimizer with two moments per parameter."""

    def __init__(self, model: nnx.Module) -> None:
        params = jax.tree.leaves(nnx.state(model, nnx.Param))
        self.step = nnx.Variable(jnp.array(0))
        self.mu = nnx.List([nnx.Variable(jnp.zeros_like(p)) for p in params])
        self.nu = nnx.List([nnx.Variable(jnp.zeros_like(p)) for p in params])


def forward(model: Chain, x: jax.Array) -> jax.Array:
    return model(x)


def forward_flat(arrays: list[jax.Array], x: jax.Array) -> jax.Array:
    for kernel, bias in zip(arrays[::2], arrays[1::2]):
        x = x @ kernel + bias
    return x


def replaced(arrays: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    return jax.lax.optimization_barrier(arrays), x + 1


def step(model: Chain, optimizer: Moments, x: jax.Array) -> jax.Array:
    variables = [v for o in (model, optimizer) for _, v in nnx.to_flat_state(nnx.state(o))]
    for v, new in zip(variables, jax.lax.optimization_barrier([v[...] for v in variables])):
        v[...] = new
    return x + 1


def alike(make: Callable[[], Any], call: Callable[[Any], Any]) -> list[Callable[[], Any]]:
    """Calls of several functions that are the same, as they are compiled one by one."""
    return [functools.partial(call, make()) for _ in range(ALIKE)]


def arrays_of(*objects: Any) -> list[jax.Array]:
    return [jnp.array(a) for o in objects for a in jax.tree.leaves(nnx.state(o))]


def forward_rows(n: int, seconds: float) -> list[Row]:
    x = jnp.ones((1, 4))
    model = Chain(n // 2)
    arrays = [a for layer in model.layers for a in (layer.kernel[...], layer.bias[...])]
    jitted = nnx.jit(forward)
    changing, swapping, toggled, elsewhere = Chain(n // 2), Chain(n // 2), Chain(n // 2), nnx.Dict(a=1)
    zeros = jnp.zeros(4)

    def after_a_change() -> Any:
        changing.layers[0].features = 9 - changing.layers[0].features  # 4 or 5
        return jitted(changing, x)

    def after_a_swap() -> Any:
        swapping.layers[0].bias = nnx.Param(zeros)
        return jitted(swapping, x)

    def change_all() -> None:
        for layer in toggled.layers:
            layer.features = 9 - layer.features

    def after_a_change_elsewhere() -> Any:
        elsewhere.a = 1
        return jitted(model, x)

    times = interleaved(
        {
            "flat": alike(lambda: jax.jit(lambda arrays, x: forward_flat(arrays, x)), lambda f: f(arrays, x)),
            "nnx.jit": alike(lambda: nnx.jit(lambda model, x: model(x)), lambda f: f(model, x)),
            "keyword": alike(lambda: nnx.jit(lambda model, *, x: model(x)), lambda f: f(model, x=x)),
            "changed": after_a_change,
            "swapped": after_a_swap,
            "all changed": lambda: jitted(toggled, x),
            "changed elsewhere": after_a_change_elsewhere,
        },
        seconds=seconds,
        wait=False,
        clock=time.thread_time,
        before={"all changed": change_all},
    )
    rows = [
        times.row("nnx.jit", f"nnx.jit, forward, {n} leaves", FORWARD[n], beyond_spread=True),
        times.row("keyword", f"nnx.jit, forward by keyword, {n} leaves", FORWARD[n], beyond_spread=True),
        times.row("changed elsewhere", f"after a change of another object, {n} leaves", None),
    ]
    best, plain = times.best, times.best["nnx.jit"]
    return [
        *rows,
        Row(f"after a change of a static attribute, against unchanged, {n} leaves", best["changed"] / plain, 3.0),
        Row(
            f"after another Variable took the place of one, against unchanged, {n} leaves", best["swapped"] / plain, 3.0
        ),
        Row(
            f"the call after a change of every Module, against unchanged, {n} leaves", best["all changed"] / plain, 3.0
        ),
    ]


def trained(n: int) -> tuple[Chain, Moments]:
    """A model and the state of its optimizer, no two arrays of which are one, as donation demands."""
    model = Chain(n // 2)
    nnx.update(model, jax.tree.map(jnp.array, nnx.state(model)))
    return model, Moments(model)


def train_rows(n: int, seconds: float) -> list[Row]:
    x = jnp.ones((1, 4))

    def flat_step() -> Callable[[], Any]:
        flat, box = jax.jit(lambda arrays, x: replaced(arrays, x)), [arrays_of(*trained(n))]

        def call() -> Any:
            box[0], out = flat(box[0], x)
            return out

        return call

    def nnx_step(**options: Any) -> Callable[[], Any]:
        jitted, objects = nnx.jit(lambda *args: step(*args), **options), trained(n)
        return lambda: jitted(*objects, x)

    times = interleaved(
        {
            "flat": [flat_step() for _ in range(ALIKE)],
            "nnx.jit": [nnx_step() for _ in range(ALIKE)],
            "donating": nnx_step(donate_argnums=(0, 1)),
        },
        seconds=seconds,
        wait=False,
        clock=time.thread_time,
        turn=max(
            0.004, n * 6e-5
        ),  # several calls each, so that what the turn before left in the caches does not matter
        of_turns=statistics.median,
    )
    return [
        times.row("nnx.jit", f"nnx.jit, train step in place, {n} parameters", TRAIN[n], beyond_spread=True),
        times.row("donating", f"nnx.jit, the same, donated, {n} parameters", None),
    ]


def measure() -> list[Row]:
    # a step with 3001 arrays takes some 15 ms, give or take a quarter: fewer seconds decide nothing
    return [row for n in SIZES for row in (*forward_rows(n, 2.5), *train_rows(n, 4.0 if n < 1000 else 20.0))]


if __name__ == "__main__":
    main(measure)
