"""Looking into functions (`inside=`) against the same sites sown by hand; and the cost after a capture."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

import sonde
from measure import Row, interleaved, main

WIDTH, DEPTH = 16, 12
X = jnp.ones((4, WIDTH))
WS = [jnp.eye(WIDTH)] * DEPTH


def layer(x: Any, w: Any) -> Any:
    h = x @ w
    a = jnp.tanh(h)
    b = a * 2 + h
    return jnp.sin(b) - a


def by_hand(x: Any, w: Any) -> Any:
    with sonde.scope("layer"):
        x, w = sonde.sow(x, "x"), sonde.sow(w, "w")
        h = sonde.sow(x @ w, "h")
        a = sonde.sow(jnp.tanh(h), "a")
        b = sonde.sow(a * 2 + h, "b")
        return sonde.sow(jnp.sin(b) - a, "return")


def model(one: Any) -> Any:
    """Makes a new function every time, which JAX has not seen."""

    def run(x: Any, ws: Any) -> Any:
        for w in ws:
            x = one(x, w)
        return x.sum()

    return run


def measure() -> list[Row]:
    both = (False, True)
    return [*map(tracing, both), *map(compiled, both), eager_functions(), eager_model(), unseen()]


def tracing(grads: bool) -> Row:
    change = jax.value_and_grad if grads else lambda f: f

    def marked() -> None:
        jax.jit(sonde.capture(change(model(layer)), inside=layer, grads=grads)).trace(X, WS)

    def sown() -> None:
        jax.jit(sonde.capture(change(model(by_hand)), grads=grads)).trace(X, WS)

    times = interleaved({"sown": sown, "marked": marked}, seconds=7, clock=time.thread_time)
    what = "gradients too" if grads else "values"
    return times.row("marked", f"tracing with inside= against sites sown by hand, {what}", 1.5)


def compiled(grads: bool) -> Row:
    """The programs have the same instructions, each with its type, in any order."""
    change = jax.value_and_grad if grads else lambda f: f

    def instructions(capture: Any) -> Counter[str]:
        text = jax.jit(capture).lower(X, WS).compile().as_text()
        return Counter(re.findall(r"= (\S+ [\w-]+)\(", text))

    mine = instructions(sonde.capture(change(model(layer)), inside=layer, grads=grads))
    hand = instructions(sonde.capture(change(model(by_hand)), grads=grads))
    differ = sum(((mine - hand) + (hand - mine)).values())
    what = "gradients too" if grads else "values"
    return Row(f"instructions that differ in the compiled program from by hand, {what} ({mine.total()})", differ, 0.0)


def eager_functions() -> Row:
    """Nothing is jitted, and a capture is made for every call."""
    mine, hand = model(layer), model(by_hand)
    assert list(sonde.capture(mine, inside=layer)(X, WS)[1]) == list(sonde.capture(hand)(X, WS)[1])
    times = interleaved(
        {
            "sown": lambda: sonde.capture(hand)(X, WS),
            "marked": lambda: sonde.capture(mine, inside=layer)(X, WS),
        },
        seconds=7,
        clock=time.thread_time,
    )
    return times.row("marked", "an eager call with inside=function against sites sown by hand", 1.5)


class Layer(eqx.Module):
    w: jax.Array

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(x @ self.w)


class Model(eqx.Module):
    layers: list[Layer]

    def __call__(self, x: Any) -> Any:
        for one in self.layers:
            x = one(x)
        return x.sum()


class SownLayer(Layer):
    def __call__(self, x: Any) -> Any:
        return sonde.sow(jnp.tanh(sonde.sow(x, "in") @ self.w), "out")


class SownModel(Model):
    def __call__(self, x: Any) -> Any:
        x = sonde.sow(x, "in")
        for i, one in enumerate(self.layers):
            with sonde.scope(f"layers/{i}"):
                x = one(x)
        return sonde.sow(x.sum(), "out")


def eager_model() -> Row:
    """The same for the calls of the modules of a model: scopes and paths that are found when a module is called."""
    mine, hand = Model([Layer(w) for w in WS]), SownModel([SownLayer(w) for w in WS])
    assert list(sonde.capture(mine, inside=mine)(X)[1]) == list(sonde.capture(hand)(X)[1])
    times = interleaved(
        {"sown": lambda: sonde.capture(hand)(X), "marked": lambda: sonde.capture(mine, inside=mine)(X)},
        seconds=7,
        clock=time.thread_time,
    )
    return times.row("marked", "an eager call with inside=model against sites sown by hand", 2.0)


def unseen() -> Row:
    """Checks that a capture does not make JAX trace or compile a jitted function again, or change its program."""
    traces = []

    def counted(x: Any, w: Any) -> Any:
        traces.append(1)
        return layer(x, w)

    run = jax.jit(model(counted))
    before = str(jax.make_jaxpr(model(layer))(X, WS))
    run(X, WS)
    n = len(traces)
    sonde.capture(model(layer), inside=layer)(X, WS)
    run(X, WS)
    same = before == str(jax.make_jaxpr(model(layer))(X, WS)) and len(traces) == n
    return Row("new traces and changes of the program after a capture", float(not same), 0.0)


if __name__ == "__main__":
    main(measure)
