"""Steps that choose between branches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from tests.core.programs.nodes import Body, Env, Node, by_hand, layout, run
from tests.core.programs.records import NO_AXES, Perts, Rec, zeros_like


@dataclasses.dataclass(frozen=True)
class Cond(Node):
    """A `cond` of two branches, a `switch` of more."""

    branches: tuple[Body, ...]
    # The choice depends on what is closed over, which may be mapped where the input is not.
    chosen_outside: bool = False
    # What the branches close over is what is closed over around, and not the input.
    keeps: bool = False

    def inside(self, x: Any, env: Env) -> Env:
        # Devices that take different branches could not wait for each other.
        return (env if self.keeps else env.closing_over(x * 0.5)).along(None)

    def index(self, x: Any, env: Env) -> Any:
        chooser = jnp.asarray(env.outer, x.dtype) if self.chosen_outside else x
        return (jnp.abs(jnp.sum(chooser)) * 7).astype(jnp.int32) % len(self.branches)

    def run(self, x: Any, env: Env) -> Any:
        inner = self.inside(x, env)
        functions = [functools.partial(lambda body, x: run(body, x, inner), body) for body in self.branches]
        if len(functions) == 2:
            return lax.cond(self.index(x, env) == 1, functions[1], functions[0], x)
        return lax.switch(self.index(x, env), functions, x)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        inner = self.inside(x, env)
        layouts = [list(with_keys(layout(body, inner))) for body in self.branches]
        places = {key: rec for branch in layouts for key, rec in branch}
        everywhere = {key for key in places if all(key in dict(branch) for branch in layouts)}
        order = in_one_order([key for key, _ in branch] for branch in layouts)

        def branch(i: int) -> Callable[[Any, Perts], tuple[Any, list[Rec]]]:
            def go(x: Any, perts: Perts) -> tuple[Any, list[Rec]]:
                mine = None if perts is None else [perts[order.index(key)] for key, _ in layouts[i]]
                y, recs = by_hand(self.branches[i], x, mine, inner)
                met = dict(with_keys(recs))
                padded = []
                for key in order:
                    rec: Rec = met[key] if key in met else zeros_like(places[key])
                    if rec.taken is None and key not in everywhere:
                        rec = dataclasses.replace(rec, taken=jnp.array(key in met), taken_front=NO_AXES)
                    padded.append(rec)
                return y, padded

            return go

        return lax.switch(self.index(x, env), [branch(i) for i in range(len(self.branches))], x, perts)


def in_one_order(branches: Iterable[Sequence[Any]]) -> list[Any]:
    """The order of what branches record: that of every branch, and where they do not say, that of the first."""
    left = [list(keys) for keys in branches]
    order: list[Any] = []
    while left := [keys for keys in left if keys]:
        heads = [keys[0] for keys in left]
        free = [head for head in heads if not any(head in keys[1:] for keys in left)]
        order.append((free or heads)[0])
        left = [[key for key in keys if key != order[-1]] for keys in left]
    return order


def with_keys(recs: Sequence[Rec]) -> Iterator[tuple[Any, Rec]]:
    """Values, with the key that two branches share: path, kind, and number."""
    seen: dict[Any, int] = {}
    for rec in recs:
        shapes = tuple(x.shape for x in rec.value)
        kind = (rec.path, rec.kind, shapes, rec.front, rec.mapped, rec.taken is None, rec.count is None)
        number = seen.get(kind, 0)
        seen[kind] = number + 1
        yield (kind, number), rec
