"""Steps that repeat: loops whose length is known, and loops whose length depends on the data."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from tests.core.programs.nodes import WEIGHTS, Body, Env, Node, by_hand, layout, run, sown
from tests.core.programs.records import NO_AXES, Perts, Rec, zeros_like

import sonde
from sonde import _jax

LoopKind = Literal["scan", "scan_without_xs", "map", "fori"]


@dataclasses.dataclass(frozen=True)
class Loop(Node):
    """A loop whose number of iterations is known."""

    body: Body
    length: int
    kind: LoopKind = "scan"
    reverse: bool = False
    # The name of the loop, if each iteration has a path of its own.
    named: str | None = None

    def inputs(self, x: Any) -> Any:
        return jnp.arange(self.length)[:, None] * 0.1 + x

    def run(self, x: Any, env: Env) -> Any:
        if self.named is None:
            return self.loop(x, env)
        with sonde.scope(f"{self.named}/*"):
            return self.loop(x, env)

    def loop(self, x: Any, env: Env) -> Any:
        inner = env.closing_over(x)

        def step(carry: Any, row: Any) -> Any:
            carry = run(self.body, carry if row is None else carry * 0.5 + row, inner)
            return carry, jnp.sin(carry)

        if self.kind == "fori":
            return lax.fori_loop(1, self.length + 1, lambda i, c: step(c, None)[0], x)
        if self.kind == "map":
            return lax.map(lambda row: run(self.body, row, inner), self.inputs(x)).sum(0) * 0.3
        xs = self.inputs(x) if self.kind == "scan" else None
        carry, ys = lax.scan(step, x, xs, length=self.length, reverse=self.reverse)
        return carry + ys[0] - 0.5 * ys.sum(0)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        inner = env.closing_over(x)
        backwards = self.reverse and self.kind.startswith("scan")
        carry, ys, recs = x, [], []
        # Unrolled: the iterations one by one, in the order in which they run.
        for i in range(self.length):
            index = self.length - 1 - i if backwards else i
            row = self.inputs(x)[index] if self.kind in ("scan", "map") else None
            if self.named is None:
                mine = None if perts is None else jax.tree.map(lambda p: p[i], perts)
            else:
                inner = dataclasses.replace(inner, prefix=f"{env.prefix}{self.named}/{i}/")
                mine = None if perts is None else perts[i * len(perts) // self.length :][: len(perts) // self.length]
            start = row if self.kind == "map" else carry if row is None else carry * 0.5 + row
            carry, new = by_hand(self.body, start, mine, inner)
            ys.append(carry if self.kind == "map" else jnp.sin(carry))
            recs.append(new)
        if self.named is None:
            stacked = [rec.inside(loops=1) for rec in jax.tree.map(lambda *rows: jnp.stack(rows), *recs)]
        else:
            stacked = [rec for row in recs for rec in row]
        ys = ys[::-1] if backwards else ys
        if self.kind == "fori":
            return carry, stacked
        if self.kind == "map":
            return sum(ys) * 0.3, stacked
        return carry + ys[0] - 0.5 * sum(ys), stacked


def trips(x: Any) -> Any:
    """A number of iterations from 0 to 3 that depends on the data."""
    return (jnp.abs(jnp.sum(x * WEIGHTS)) * 10).astype(jnp.int32) % 4


@dataclasses.dataclass(frozen=True)
class While(Node):
    """A loop whose number of iterations depends on the data.

    Sites are only differentiated where their value depends on what the program is differentiated by, so a part of the
    input goes round the loop.
    """

    body: Body
    test_site: str | None = None
    fori: bool = False
    # Reverse mode cannot go through a while loop.
    stop: bool = True
    # The length depends on what is closed over, which may be mapped where the input is not.
    length_outside: bool = False

    def length(self, x: Any, env: Env) -> Any:
        return trips(jnp.asarray(env.outer, x.dtype) if self.length_outside else x)

    def inside(self, x: Any, env: Env) -> Env:
        # Devices whose loops end at different times could not wait for each other.
        return env.closing_over(x).where(differentiated=env.differentiated and not self.stop).along(None)

    def run(self, x: Any, env: Env) -> Any:
        way_around, x = 0.5 * x, lax.stop_gradient(x) if self.stop else x
        n = self.length(x, env)
        # JAX lets the result of a loop vary over a mesh where its start does, and forgets how often it goes round.
        x = _jax.varying_over(x, _jax.varying_axes(n))
        inner = self.inside(x, env)
        if self.fori:  # in a jit, because a concrete bound makes a scan of it
            y = jax.jit(lambda x, n: lax.fori_loop(0, n, lambda _, c: run(self.body, c, inner), x))(x, n)
            return way_around + y

        def test(state: Any) -> Any:
            i, carry = state
            if self.test_site is not None:
                sown(carry * 2, self.test_site)
            return i < n

        return way_around + lax.while_loop(test, lambda s: (s[0] + 1, run(self.body, s[1], inner)), (0, x))[1]

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        way_around, x = 0.5 * x, lax.stop_gradient(x) if self.stop else x
        n, inner = self.length(x, env), self.inside(x, env)
        empty = zeros_like(layout(self.body, inner))

        def step(state: Any) -> Any:
            i, carry, _ = state
            carry, recs = by_hand(self.body, carry, None, inner)
            return i + 1, carry, recs

        count, y, recs = lax.while_loop(lambda s: s[0] < n, step, (jnp.int32(0), x, empty))
        recs = [r if r.count is not None else dataclasses.replace(r, count=count, count_front=NO_AXES) for r in recs]
        if self.test_site is not None and not self.fori:
            recs = [Rec([y * 2], env.prefix + self.test_site, "array", count=count), *recs]
        return way_around + y, recs
