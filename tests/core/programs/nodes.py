"""Steps of programs, each in two forms: as a user writes it, and with what passes its sites returned by hand.

Every node maps an array of shape `SHAPE` to another. `Node.run` is the program as a user writes it, with `sonde.sow`.
`Node.by_hand` computes the same and returns what passed the sites, threaded through every transform without any help
from Sonde: stacked by scans, padded with zeros by conds, carried along by while loops. Gradients by hand are the
derivatives with respect to a perturbation, shaped like the record, that is added at every site.

The order of axes is the one that records promise: loops first, outermost first, then mesh axes, then mapped axes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tests.core.programs.records import Perts, Rec, SiteKind, nudged

import sonde

SHAPE = (2,)
WEIGHTS = np.array([0.7, -1.1], np.float32)
NOTHING = np.array([0.4, -0.9], np.float32)  # what a function closes over that has nothing to close over

_written_in: list[Callable[[Any, str], Any]] = []


@contextlib.contextmanager
def edit_written_in(change: Callable[[Any, str], Any]) -> Iterator[None]:
    """While a program is traced in this block, its sites are a change of their values, written in by hand.

    The change is a function of the value and the name of the site.
    """
    _written_in.append(change)
    try:
        yield
    finally:
        _written_in.pop()


def sown(value: Any, name: str) -> Any:
    """A value that the program marks; or, where an edit is written in by hand, what the edit makes of it."""
    return _written_in[-1](value, name) if _written_in else sonde.sow(value, name)


@dataclasses.dataclass(frozen=True)
class Env:
    """The surroundings of a node: jitted functions of the program, and a value to close over.

    By hand, `functions` are the bodies of those functions, `prefix` are the open scopes, and `differentiated` says
    whether the values here are differentiated by a transform inside the captured program.
    """

    functions: tuple[Any, ...] = ()
    outer: Any = dataclasses.field(default_factory=lambda: NOTHING)
    prefix: str = ""
    differentiated: bool = False
    # The innermost axis that has a name, mapped or of a mesh, if all of its elements run this.
    axis: str | None = None

    def closing_over(self, outer: Any) -> Env:
        return dataclasses.replace(self, outer=outer)

    def closing_over_nothing(self) -> Env:
        return dataclasses.replace(self, outer=NOTHING)

    def where(self, *, differentiated: bool) -> Env:
        return dataclasses.replace(self, differentiated=differentiated)

    def along(self, axis: str | None) -> Env:
        return dataclasses.replace(self, axis=axis)


class Node:
    """A step of a program."""

    def run(self, x: Any, env: Env) -> Any:
        raise NotImplementedError

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        raise NotImplementedError


Body = tuple[Node, ...]


def run(body: Body, x: Any, env: Env) -> Any:
    for node in body:
        x = node.run(x, env)
    return x


def by_hand(body: Body, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
    recs: list[Rec] = []
    for node in body:
        mine = None if perts is None else perts[len(recs) : len(recs) + len(layout((node,), env))]
        x, new = node.by_hand(x, mine, env)
        recs += new
    return x, recs


_layouts: dict[Any, list[Rec]] = {}


def layout(body: Body, env: Env) -> list[Rec]:
    """What a body returns by hand, as shapes. All bodies take the same shape, so it depends on little."""
    key = (body, env.prefix, env.functions, env.differentiated, jax.config.read("jax_enable_x64"))
    if key not in _layouts:
        if len(_layouts) > 2000:
            _layouts.clear()
        plain = env.closing_over_nothing().along(None)
        # Loop and axis counts travel in the structure, which eval_shape keeps.
        _layouts[key] = jax.eval_shape(lambda x: by_hand(body, x, None, plain)[1], jnp.zeros(SHAPE, float))
    return _layouts[key]


@dataclasses.dataclass(frozen=True)
class Op(Node):
    """Plain arithmetic, without a site."""

    which: int

    def run(self, x: Any, env: Env) -> Any:
        return [lambda x: jnp.sin(1.3 * x + 0.1), lambda x: 1.2 * jnp.tanh(x), lambda x: 0.7 * x + 0.2 * x[::-1] ** 2][
            self.which
        ](x)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        return self.run(x, env), []


@dataclasses.dataclass(frozen=True)
class Outer(Node):
    """Closes over a value of the function around."""

    def run(self, x: Any, env: Env) -> Any:
        return x + 0.3 * env.outer

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        return self.run(x, env), []


def rotated(x: Any, axis: str) -> Any:
    size = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + 1) % size) for i in range(size)])


COLLECTIVES: dict[str, Callable[[Any, str], Any]] = {
    "pmean": lambda x, axis: lax.pmean(jnp.sin(x), axis),
    "psum": lambda x, axis: 0.2 * lax.psum(x * x, axis),
    "gather": lambda x, axis: 0.5 * lax.all_gather(x, axis)[0],
    "permute": rotated,
}


@dataclasses.dataclass(frozen=True)
class Collective(Node):
    """Depends on all elements of the innermost axis with a name, if there is one."""

    kind: str

    def run(self, x: Any, env: Env) -> Any:
        return x if env.axis is None else 0.6 * x + 0.4 * COLLECTIVES[self.kind](x, env.axis)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        return self.run(x, env), []


def site_value(kind: SiteKind, x: Any, outer: Any) -> Any:
    if kind in ("itself", "through"):  # the very array that came in
        return x
    if kind == "tree":
        return {"f": x * 1.1, "i": (x > 0).astype(jnp.int32), "k": jnp.arange(3), "s": "label", "none": None}
    if kind in ("pair", "half"):  # leaves of one shape, which depend on different things
        return x * 0.9, jnp.asarray(outer, x.dtype) * 1.1
    if kind == "mixed":
        return {"a": jnp.sum(x * WEIGHTS), "b": 0.8 * jnp.asarray(outer, x.dtype), "c": x[:, None] * WEIGHTS}
    return jnp.sum(x * WEIGHTS) if kind == "scalar" else x * 0.9


def after_site(kind: SiteKind, x: Any, sown: Any) -> Any:
    if kind == "unused":
        return x
    if kind == "through":  # and the very array that goes out
        return sown
    if kind == "tree":
        return jnp.sin(sown["f"])
    if kind == "pair":
        return x * 0.5 + jnp.sin(sown[0]) * jnp.cos(0.7 * sown[1])
    if kind == "half":  # one of the leaves is not used
        return x * 0.5 + jnp.sin(sown[0])
    if kind == "mixed":
        return x * 0.4 + 0.5 * jnp.sin(sown["a"]) + 0.3 * sown["b"] + 0.3 * jnp.tanh(sown["c"]).sum(0)
    return x * 0.5 + jnp.sin(sown)


@dataclasses.dataclass(frozen=True)
class Sow(Node):
    """A site."""

    name: str
    kind: SiteKind = "array"

    def run(self, x: Any, env: Env) -> Any:
        return after_site(self.kind, x, sown(site_value(self.kind, x, env.outer), self.name))

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        value = sown_by_hand(site_value(self.kind, x, env.outer), None if perts is None else perts[0])
        return after_site(self.kind, x, value), [self.rec(value, env)]

    def rec(self, value: Any, env: Env) -> Rec:
        arrays = [leaf for leaf in jax.tree.leaves(value) if isinstance(leaf, jax.Array)]
        return Rec(arrays, env.prefix + self.name, self.kind)


def sown_by_hand(value: Any, perturbation: Any) -> Any:
    """A value with something added to its floats."""
    if perturbation is None:
        return value
    leaves, tree = jax.tree.flatten(value)
    left = iter(perturbation)
    is_float = lambda leaf: isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.floating)
    return jax.tree.unflatten(tree, [nudged(leaf, next(left)) if is_float(leaf) else leaf for leaf in leaves])


@dataclasses.dataclass(frozen=True)
class SowTwice(Node):
    """One value at two sites: one after the other, or both given the same arrays."""

    first: Sow
    name: str
    after: bool

    @property
    def second(self) -> Sow:
        return Sow(self.name, self.first.kind)

    def run(self, x: Any, env: Env) -> Any:
        value = site_value(self.first.kind, x, env.outer)
        first = sown(value, self.first.name)
        second = sown(first if self.after else value, self.name)
        return self.together(x, first, second)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        value = site_value(self.first.kind, x, env.outer)
        first = sown_by_hand(value, None if perts is None else perts[0])
        second = sown_by_hand(first if self.after else value, None if perts is None else perts[1])
        return self.together(x, first, second), [self.first.rec(first, env), self.second.rec(second, env)]

    def together(self, x: Any, first: Any, second: Any) -> Any:
        y = after_site(self.first.kind, x, second)
        return y if self.after else 0.6 * y + 0.3 * after_site(self.first.kind, x, first)


@dataclasses.dataclass(frozen=True)
class Scope(Node):
    name: str
    body: Body

    def run(self, x: Any, env: Env) -> Any:
        with sonde.scope(self.name):
            return run(self.body, x, env)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        return by_hand(self.body, x, perts, dataclasses.replace(env, prefix=f"{env.prefix}{self.name}/"))


@dataclasses.dataclass(frozen=True)
class Dead(Node):
    """Computes what nothing uses."""

    body: Body

    def run(self, x: Any, env: Env) -> Any:
        run(self.body, 0.8 * x, env.closing_over(x))
        return x

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        return x, by_hand(self.body, 0.8 * x, perts, env.closing_over(x))[1]


@dataclasses.dataclass(frozen=True)
class Instead(Node):
    """Uses a closed-over value, which may be mapped differently from the input."""

    body: Body

    def run(self, x: Any, env: Env) -> Any:
        outer = jnp.asarray(env.outer, x.dtype)
        return 0.5 * x + run(self.body, outer, env)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        y, recs = by_hand(self.body, jnp.asarray(env.outer, x.dtype), perts, env)
        return 0.5 * x + y, recs


@dataclasses.dataclass(frozen=True)
class Jit(Node):
    body: Body
    inline: bool = False

    def run(self, x: Any, env: Env) -> Any:
        inner = env.closing_over(x)
        return jax.jit(lambda y: run(self.body, y, inner), inline=self.inline)(jnp.cos(x))

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        return by_hand(self.body, jnp.cos(x), perts, env.closing_over(x))


@dataclasses.dataclass(frozen=True)
class Call(Node):
    """Calls one of the program's jitted functions, which other nodes call too.

    A function has two arguments: what it works on, and what it closes over. They can be exchanged, so that calls of one
    function differ in what is mapped and what is differentiated.
    """

    function: int
    times: int = 1
    exchanged: bool = False

    def run(self, x: Any, env: Env) -> Any:
        for _ in range(self.times):
            outer = jnp.asarray(env.outer, x.dtype)
            if self.exchanged:
                x = 0.5 * x + env.functions[self.function](outer, x)
            else:
                x = env.functions[self.function](x, outer)
        return x

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        body: Body = env.functions[self.function]
        env = env.along(None)  # as the jitted functions are
        recs: list[Rec] = []
        for _ in range(self.times):
            mine = None if perts is None else perts[len(recs) : len(recs) + len(layout(body, env))]
            if self.exchanged:
                y, new = by_hand(body, jnp.asarray(env.outer, x.dtype), mine, env.closing_over(x))
                x = 0.5 * x + y
            else:
                x, new = by_hand(body, x, mine, env)
            recs += new
        return x, recs
