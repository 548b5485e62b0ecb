"""How costs grow: with the depth of scopes and of the stack, with the number of sites and of edits.

A row is an exponent: 1 if twice as much costs twice as much. CPU time, the best of many, in turns.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import sonde
from measure import Row, main

X = jnp.ones(2)
FEW, MANY = 100, 400
ROUNDS = 15

Make = Callable[[int], Callable[[], Any]]


def scopes(n: int) -> Callable[[], Any]:
    def f(x: Any, left: int = n) -> Any:
        if not left:
            return sonde.sow(x, "h") * 2
        with sonde.scope("a"):
            return f(x, left - 1)

    return lambda: sonde.capture(f)(X)


def traced_scopes(n: int) -> Callable[[], Any]:
    def f(x: Any, left: int = n) -> Any:
        if not left:
            return x
        with sonde.scope("a"):
            return f(sonde.sow(x + 1, "h"), left - 1)

    return lambda: jax.jit(sonde.capture(f)).trace(X)


def stack(n: int) -> Callable[[], Any]:
    """As many scopes, entered one after another, at different depths of Python's stack."""

    def in_turn(x: Any) -> Any:
        for _ in range(100):
            with sonde.scope("a"):
                x = sonde.sow(x, "h")
        return x

    def f(x: Any, left: int = n) -> Any:
        return f(x, left - 1) if left else in_turn(x)

    return lambda: sonde.capture(f)(X)


def marked(n: int) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        for i in range(n):
            x = sonde.sow(x, f"h{i}")
        return x

    return f


def sites(n: int) -> Callable[[], Any]:
    f = marked(n)
    return lambda: sonde.capture(f)(X)


def traced_sites(n: int) -> Callable[[], Any]:
    return lambda: jax.jit(sonde.capture(marked(n))).trace(X)


def edits(n: int) -> Callable[[], Any]:
    f = marked(n)
    _, records = sonde.capture(f)(X)
    return lambda: sonde.edit(f, records)(X)


def traced_edits(n: int) -> Callable[[], Any]:
    _, records = sonde.capture(marked(n))(X)
    return lambda: jax.jit(sonde.edit(marked(n), records)).trace(X)


def exponent(question: str, make: Make, bound: float) -> Row:
    few, many = make(FEW), make(MANY)
    best = [math.inf, math.inf]
    for _ in range(ROUNDS):
        for i, run in enumerate((few, many)):
            start = time.process_time()
            run()
            best[i] = min(best[i], time.process_time() - start)
    value = math.log(best[1] / best[0]) / math.log(MANY / FEW)
    return Row(question, value, bound, detail=f"{best[0] * 1e3:.1f} ms for {FEW}, {best[1] * 1e3:.1f} ms for {MANY}")


def measure() -> list[Row]:
    return [
        exponent("exponent of the depth of scopes, eager", scopes, 1.1),
        exponent("exponent of the depth of scopes with a site in each, traced", traced_scopes, 1.1),
        exponent("exponent of the depth of the stack", stack, 1.1),
        exponent("exponent of the number of sites, eager", sites, 1.1),
        exponent("exponent of the number of sites, traced", traced_sites, 1.1),
        exponent("exponent of the number of edits, eager", edits, 1.1),
        exponent("exponent of the number of edits, traced", traced_edits, 1.1),
    ]


if __name__ == "__main__":
    main(measure)
