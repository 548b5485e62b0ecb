"""Looking into functions (`inside=`) against the same sites sown by hand; and the cost after a capture."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any

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
    return [*(tracing(grads) for grads in (False, True)), *(compiled(grads) for grads in (False, True)), unseen()]


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
