"""Random programs, each in two forms: one marks its values with `sonde.sow`, one returns them by hand.

A program is a tree of nodes; every node maps an array of shape `SHAPE` to another. `Node.run` is the program as a user
writes it. `Node.by_hand` computes the same and returns what passed the sites, threaded through every transform without
any help from Sonde: stacked by scans, padded with zeros by conds, carried along by while loops. Gradients by hand are
derivatives with respect to a perturbation, shaped like the record, that is added at every site.

The order of axes is the one that records promise: loops first, outermost first, then mesh axes, then mapped axes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, PartitionSpec

import sonde

SHAPE = (2,)
WEIGHTS = np.array([0.7, -1.1], np.float32)
POLICIES: dict[str, Any] = {
    "default": None,
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "everything": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
}

SiteKind = Literal["array", "unused", "scalar", "tree"]

# ---------------------------------------------------------------------------------------------------------------------
# What is recorded by hand
# ---------------------------------------------------------------------------------------------------------------------


class Front(NamedTuple):
    """How many axes stand before the mapped ones."""

    loops: int
    mesh: int


NO_AXES = Front(0, 0)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["value", "taken", "count", "grads"],
    meta_fields=["path", "kind", "front", "mapped", "taken_front", "count_front"],
)
@dataclasses.dataclass(frozen=True)
class Rec:
    """One value, by hand: arrays and how many axes of each kind stand in front of them.

    `grads` holds, innermost differentiation first, what corresponds to the floating-point arrays of `value`. Flags and
    counts may come from outside of some of the loops that the value is in, so their axes are counted apart.
    """

    value: list[Any]
    path: str
    kind: SiteKind
    taken: Any = None
    count: Any = None
    grads: tuple[list[Any], ...] = ()
    front: Front = NO_AXES
    mapped: int = 0
    taken_front: Front = NO_AXES
    count_front: Front = NO_AXES

    @property
    def floats(self) -> list[Any]:
        """The arrays that can be perturbed."""
        return [x for x in self.value if jnp.issubdtype(x.dtype, jnp.floating)]

    @property
    def n_front(self) -> int:
        return self.front.loops + self.front.mesh + self.mapped

    def inside(self, *, loops: int = 0, mesh: int = 0, mapped: int = 0) -> Rec:
        """The same with more axes in front."""
        fronts = {
            name: Front(front.loops + loops, front.mesh + mesh)
            for name in ("front", "taken_front", "count_front")
            for front in [getattr(self, name)]
        }
        return dataclasses.replace(self, mapped=self.mapped + mapped, **fronts)

    def out_axes(self, *, over_mesh: bool) -> Rec:
        """Where a new mapped axis goes, in the form that `jax.vmap(out_axes=...)` takes."""
        at = lambda front: front.loops if over_mesh else front.loops + front.mesh
        axes: Any = jax.tree.map(lambda _: at(self.front), self)
        return dataclasses.replace(
            axes,
            taken=None if self.taken is None else at(self.taken_front),
            count=None if self.count is None else at(self.count_front),
        )


Perts = list[list[Any]] | None


def zeros_like(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)


def no_perts(recs: Sequence[Rec]) -> list[list[Any]]:
    """A zero perturbation for each of the values."""
    return zeros_like([rec.floats for rec in recs])


def plus(a: list[list[Any]], b: Perts) -> list[list[Any]]:
    return a if b is None else jax.tree.map(jnp.add, a, b)


def map_arrays(fn: Callable[[Any], Any], tree: Any) -> Any:
    return jax.tree.map(fn, tree)


# ---------------------------------------------------------------------------------------------------------------------
# Nodes
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Env:
    """What is around a node: jitted functions of the program, a value to close over, and, by hand, the scopes."""

    functions: tuple[Any, ...] = ()
    outer: Any = None
    prefix: str = ""

    def closing_over(self, outer: Any) -> Env:
        return dataclasses.replace(self, outer=outer)


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
    key = (body, env.prefix, env.functions, jax.config.read("jax_enable_x64"))
    if key not in _layouts:
        if len(_layouts) > 2000:
            _layouts.clear()
        plain = env.closing_over(None)
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
        return x if env.outer is None else x + 0.3 * env.outer

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        return self.run(x, env), []


def site_value(kind: SiteKind, x: Any) -> Any:
    if kind == "tree":
        return {"f": x * 1.1, "i": (x > 0).astype(jnp.int32), "k": jnp.arange(3), "s": "label", "none": None}
    return jnp.sum(x * WEIGHTS) if kind == "scalar" else x * 0.9


def after_site(kind: SiteKind, x: Any, sown: Any) -> Any:
    if kind == "unused":
        return x
    return jnp.sin(sown["f"]) if kind == "tree" else x * 0.5 + jnp.sin(sown)


@dataclasses.dataclass(frozen=True)
class Sow(Node):
    """A site."""

    name: str
    kind: SiteKind = "array"

    def run(self, x: Any, env: Env) -> Any:
        return after_site(self.kind, x, sonde.sow(site_value(self.kind, x), self.name))

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        value = site_value(self.kind, x)
        pert = perts[0][0] if perts is not None else None
        if self.kind == "tree":
            if pert is not None:
                value["f"] = value["f"] + pert
            arrays = [value["f"], value["i"], value["k"]]
        else:
            value = value if pert is None else value + pert
            arrays = [value]
        return after_site(self.kind, x, value), [Rec(arrays, env.prefix + self.name, self.kind)]


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
    """Calls one of the program's jitted functions, which other nodes call too."""

    function: int
    times: int = 1

    def run(self, x: Any, env: Env) -> Any:
        for _ in range(self.times):
            x = env.functions[self.function](x)
        return x

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        body: Body = env.functions[self.function]
        return by_hand(body * self.times, x, perts, dataclasses.replace(env, outer=None))


@dataclasses.dataclass(frozen=True)
class Vmap(Node):
    """Maps over three variants of the input, along any axis."""

    body: Body
    in_axis: int
    out_axis: int
    weights: tuple[float, ...] = (1.0, -0.6, 0.3)

    def variants(self, x: Any) -> Any:
        return jnp.stack([x * w + 0.2 * i for i, w in enumerate(self.weights)], self.in_axis)

    def run(self, x: Any, env: Env) -> Any:
        inner = env.closing_over(x)
        mapped = jax.vmap(lambda y: run(self.body, y, inner), self.in_axis, self.out_axis)
        return mapped(self.variants(x)).mean(self.out_axis)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        y, recs = map_by_hand(self.body, self.variants(x), self.in_axis, perts, env.closing_over(x), over_mesh=False)
        return y.mean(0), recs


def map_by_hand(body: Body, xs: Any, in_axis: int, perts: Perts, env: Env, *, over_mesh: bool) -> tuple[Any, list[Rec]]:
    """Maps a body over an axis; the new axis of what is recorded comes after its loops."""
    axes = [rec.out_axes(over_mesh=over_mesh) for rec in layout(body, env)]
    pert_axes = None if perts is None else [[a for _ in p] for p, a in zip(perts, [r.value[0] for r in axes])]
    mapped = jax.vmap(lambda x, p: by_hand(body, x, p, env), in_axes=(in_axis, pert_axes), out_axes=(0, axes))
    y, recs = mapped(xs, perts)
    return y, [rec.inside(mesh=over_mesh, mapped=not over_mesh) for rec in recs]


LoopKind = Literal["scan", "scan_without_xs", "map", "fori"]


@dataclasses.dataclass(frozen=True)
class Loop(Node):
    """A loop whose number of iterations is known."""

    body: Body
    length: int
    kind: LoopKind = "scan"
    reverse: bool = False

    def inputs(self, x: Any) -> Any:
        return jnp.arange(self.length)[:, None] * 0.1 + x

    def run(self, x: Any, env: Env) -> Any:
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
            mine = None if perts is None else map_arrays(lambda p: p[i], perts)
            start = row if self.kind == "map" else carry if row is None else carry * 0.5 + row
            carry, new = by_hand(self.body, start, mine, inner)
            ys.append(carry if self.kind == "map" else jnp.sin(carry))
            recs.append(new)
        stacked = [rec.inside(loops=1) for rec in jax.tree.map(lambda *rows: jnp.stack(rows), *recs)]
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

    def run(self, x: Any, env: Env) -> Any:
        way_around, x = 0.5 * x, lax.stop_gradient(x) if self.stop else x
        n, inner = trips(x), env.closing_over(x)
        if self.fori:  # in a jit, because a concrete bound makes a scan of it
            y = jax.jit(lambda x, n: lax.fori_loop(0, n, lambda _, c: run(self.body, c, inner), x))(x, n)
            return way_around + y

        def test(state: Any) -> Any:
            i, carry = state
            if self.test_site is not None:
                sonde.sow(carry * 2, self.test_site)
            return i < n

        return way_around + lax.while_loop(test, lambda s: (s[0] + 1, run(self.body, s[1], inner)), (0, x))[1]

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        way_around, x = 0.5 * x, lax.stop_gradient(x) if self.stop else x
        n, inner = trips(x), env.closing_over(x)
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


@dataclasses.dataclass(frozen=True)
class Cond(Node):
    """A `cond` of two branches, a `switch` of more."""

    branches: tuple[Body, ...]

    def index(self, x: Any) -> Any:
        return (jnp.abs(jnp.sum(x)) * 7).astype(jnp.int32) % len(self.branches)

    def run(self, x: Any, env: Env) -> Any:
        inner = env.closing_over(x * 0.5)
        functions = [functools.partial(lambda body, x: run(body, x, inner), body) for body in self.branches]
        if len(functions) == 2:
            return lax.cond(self.index(x) == 1, functions[1], functions[0], x)
        return lax.switch(self.index(x), functions, x)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        inner = env.closing_over(x * 0.5)
        layouts = [list(with_keys(layout(body, inner))) for body in self.branches]
        places = {key: rec for branch in layouts for key, rec in branch}
        everywhere = {key for key in places if all(key in dict(branch) for branch in layouts)}
        order = list(places)

        def branch(i: int) -> Callable[[Any, Perts], tuple[Any, list[Rec]]]:
            def go(x: Any, perts: Perts) -> tuple[Any, list[Rec]]:
                mine = None if perts is None else [perts[order.index(key)] for key, _ in layouts[i]]
                y, recs = by_hand(self.branches[i], x, mine, inner)
                met = dict(with_keys(recs))
                padded = []
                for key, empty in places.items():
                    rec: Rec = met[key] if key in met else zeros_like(empty)
                    if rec.taken is None and key not in everywhere:
                        rec = dataclasses.replace(rec, taken=jnp.array(key in met), taken_front=NO_AXES)
                    padded.append(rec)
                return y, padded

            return go

        return lax.switch(self.index(x), [branch(i) for i in range(len(self.branches))], x, perts)


def with_keys(recs: Sequence[Rec]) -> Iterator[tuple[Any, Rec]]:
    """Values together with what makes those of two branches share a place: path, kind, and which of several."""
    seen: dict[Any, int] = {}
    for rec in recs:
        shapes = tuple(x.shape for x in rec.value)
        kind = (rec.path, rec.kind, shapes, rec.front, rec.mapped, rec.taken is None, rec.count is None)
        number = seen.get(kind, 0)
        seen[kind] = number + 1
        yield (kind, number), rec


@dataclasses.dataclass(frozen=True)
class Remat(Node):
    body: Body
    policy: str = "default"
    prevent_cse: bool = True

    def run(self, x: Any, env: Env) -> Any:
        inner = env.closing_over(x * 0.5)
        inside = lambda y: run(self.body, y, inner)
        return jax.checkpoint(inside, policy=POLICIES[self.policy], prevent_cse=self.prevent_cse)(x)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        return by_hand(self.body, x, perts, env.closing_over(x * 0.5))


@dataclasses.dataclass(frozen=True)
class CustomJvp(Node):
    """A function with its own forward rule: a formula of its own, or the true one scaled."""

    body: Body
    through: bool

    def run(self, x: Any, env: Env) -> Any:
        inner = env.closing_over(None)

        @jax.custom_jvp
        def f(x: Any) -> Any:
            return run(self.body, x, inner)

        @f.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            if not self.through:
                return f(*primals), 1.5 * jnp.cos(primals[0]) * tangents[0]
            y, t = jax.jvp(lambda x: run(self.body, x, inner), primals, tangents)
            return y, 0.7 * t

        return f(x)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        inner = env.closing_over(None)
        if not self.through:
            return by_formula(self.body, x, perts, inner)

        @jax.custom_jvp
        def f(x: Any, perts: Any) -> Any:
            return by_hand(self.body, x, perts, inner)

        @f.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            out, (t, recs) = jax.jvp(lambda x, p: by_hand(self.body, x, p, inner), primals, tangents)
            return out, (0.7 * t, recs)

        return f(x, perts)


def by_formula(body: Body, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
    """The body's value with the derivative of `1.5 * sin(x)`."""
    y, recs = by_hand(body, lax.stop_gradient(x), lax.stop_gradient(perts), env)
    other = 1.5 * jnp.sin(x)
    return lax.stop_gradient(y) + (other - lax.stop_gradient(other)), recs


@dataclasses.dataclass(frozen=True)
class CustomVjp(Node):
    """A function with its own backward rule: a formula of its own, or the true one scaled."""

    body: Body
    through: bool

    def run(self, x: Any, env: Env) -> Any:
        inner = env.closing_over(None)

        @jax.custom_vjp
        def f(x: Any) -> Any:
            return run(self.body, x, inner)

        if self.through:
            f.defvjp(lambda x: jax.vjp(lambda x: run(self.body, x, inner), x), lambda pull, ct: pull(0.7 * ct))
        else:
            f.defvjp(lambda x: (f(x), x), lambda x, ct: (1.5 * jnp.cos(x) * ct,))
        return f(x)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        inner = env.closing_over(None)
        if not self.through:
            return by_formula(self.body, x, perts, inner)

        @jax.custom_vjp
        def f(x: Any, perts: Any) -> Any:
            return by_hand(self.body, x, perts, inner)

        def forward(x: Any, perts: Any) -> Any:
            y, pull, recs = jax.vjp(lambda x, p: by_hand(self.body, x, p, inner), x, perts, has_aux=True)
            return (y, recs), pull

        f.defvjp(forward, lambda pull, cts: pull(0.7 * cts[0]))
        return f(x, perts)


GradKind = Literal["grad", "value_and_grad", "vjp", "vjp_twice"]


@dataclasses.dataclass(frozen=True)
class Grad(Node):
    """A reverse differentiation inside the program."""

    body: Body
    kind: GradKind

    def run(self, x: Any, env: Env) -> Any:
        inner = env.closing_over(x * 0.5)
        inside = lambda y: run(self.body, y, inner)
        loss = lambda y: jnp.sum(inside(y) * WEIGHTS)
        if self.kind == "grad":
            return jnp.sin(x + jax.grad(loss)(x))
        if self.kind == "value_and_grad":
            value, gradient = jax.value_and_grad(loss)(x)
            return jnp.sin(x + value + gradient)
        y, pull = jax.vjp(inside, x)
        if self.kind == "vjp":
            return jnp.sin(x + y + pull(x)[0])
        (first,), (second,) = pull(x), pull(y)
        return jnp.sin(x + first + second)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        inner = env.closing_over(x * 0.5)
        perts = plus(no_perts(layout(self.body, inner)), perts)
        y, pull, recs = jax.vjp(lambda x, p: by_hand(self.body, x, p, inner), x, perts, has_aux=True)
        cotangent = {"grad": WEIGHTS, "value_and_grad": WEIGHTS, "vjp": x, "vjp_twice": x + y}[self.kind]
        gradient, at_sites = pull(jnp.asarray(cotangent, x.dtype))
        recs = [dataclasses.replace(r, grads=(*r.grads, g)) for r, g in zip(recs, at_sites)]
        value = {"grad": 0.0, "value_and_grad": jnp.sum(y * WEIGHTS), "vjp": y, "vjp_twice": 0.0}[self.kind]
        return jnp.sin(x + value + gradient), recs


@dataclasses.dataclass(frozen=True)
class Jvp(Node):
    """A forward differentiation inside the program."""

    body: Body
    linearize: bool = False

    def run(self, x: Any, env: Env) -> Any:
        inner = env.closing_over(x * 0.5)
        inside = lambda y: run(self.body, y, inner)
        if self.linearize:
            y, linear = jax.linearize(inside, x)
            return jnp.sin(y + linear(jnp.cos(x)))
        y, tangent = jax.jvp(inside, (x,), (jnp.cos(x),))
        return jnp.sin(y + tangent)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        inner = env.closing_over(x * 0.5)
        inside = lambda y: by_hand(self.body, y, perts, inner)
        y, tangent, recs = jax.jvp(inside, (x,), (jnp.cos(x),), has_aux=True)
        return jnp.sin(y + tangent), recs


def mesh() -> Any:
    return jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))


@dataclasses.dataclass(frozen=True)
class Shard(Node):
    """Runs on two devices, on values that vary over them and perhaps on one that does not."""

    body: Body
    psum: bool = False
    replicated_site: str | None = None

    def run(self, x: Any, env: Env) -> Any:
        inner = env.closing_over(None)

        def per_shard(shard: Any, same: Any) -> Any:
            y = shard[0]
            if self.replicated_site is not None:
                y = y + 0.3 * sonde.sow(same * 2, self.replicated_site)
            y = run(self.body, y, inner)
            return lax.psum(y, "d") if self.psum else y[None]

        spec, here = PartitionSpec("d"), mesh()
        out_spec = PartitionSpec() if self.psum else spec
        mapped = jax.shard_map(per_shard, mesh=here, in_specs=(spec, PartitionSpec()), out_specs=out_spec)
        y = mapped(jnp.stack([x, 0.5 - x]), x)
        return jnp.sin(y if self.psum else y.sum(0))

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        first, shards = [], jnp.stack([x, 0.5 - x])
        if self.replicated_site is not None:
            same = x * 2 if perts is None else x * 2 + perts[0][0]
            perts = None if perts is None else perts[1:]
            first = [Rec([same], env.prefix + self.replicated_site, "array")]
            shards = shards + 0.3 * same
        y, recs = map_by_hand(self.body, shards, 0, perts, env.closing_over(None), over_mesh=True)
        return jnp.sin(y.sum(0)), first + recs


# ---------------------------------------------------------------------------------------------------------------------
# Whole programs
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Program:
    """Jitted functions, each of which may call the ones before it, and a body that calls them."""

    functions: tuple[Body, ...]
    body: Body
    differentiable: bool = True

    def make(self) -> Callable[[Any], Any]:
        """The program as a function, with its own jitted functions."""
        functions: tuple[Any, ...] = ()
        for body in self.functions:
            functions = (
                *functions,
                jax.jit(functools.partial(lambda body, env, x: run(body, x, env), body, Env(functions))),
            )
        return lambda x: run(self.body, x, Env(functions))

    def by_hand(self, x: Any) -> tuple[Any, list[Rec]]:
        """The result and what passed the sites."""
        return by_hand(self.body, x, None, Env(self.functions))

    def grad_by_hand(self, x: Any) -> tuple[Any, list[Rec]]:
        """The gradient of `loss_of(program)`, and what passed the sites, with gradients."""
        env = Env(self.functions)

        def loss(x: Any, perts: Perts) -> Any:
            y, recs = by_hand(self.body, x, perts, env)
            return jnp.sum(y * WEIGHTS), recs

        zeros = no_perts(layout(self.body, env))
        (gradient, at_sites), recs = jax.grad(loss, argnums=(0, 1), has_aux=True)(x, zeros)
        return gradient, [dataclasses.replace(r, grads=(*r.grads, g)) for r, g in zip(recs, at_sites)]


def loss_of(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jnp.sum(f(x) * WEIGHTS)


# ---------------------------------------------------------------------------------------------------------------------
# Drawing them
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a body is to stand, as far as that limits what may be in it."""

    depth: int
    n_functions: int = 0
    reverse: bool = True  # reverse mode must be able to go through
    forward: bool = False  # forward mode goes through: no custom_vjp
    shard: bool = True  # no shard_map inside another
    branch: bool = False  # names must differ between branches: no functions, no repeated names

    def inside(self, **changes: Any) -> Place:
        return dataclasses.replace(self, depth=self.depth - 1, **changes)


class Drawing:
    """Draws the parts of a program, with fresh names and now and then one that was used before."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.n_names = 0

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def one_in(self, n: int) -> bool:
        return self.random.randint(1, n) == n

    def of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def name(self, place: Place) -> str:
        if self.n_names and not place.branch and self.one_in(6):
            return "again"
        self.n_names += 1
        return f"s{self.n_names}"

    def program(self, max_depth: int) -> Program:
        functions: tuple[Body, ...] = ()
        for i in range(self.integer(0, 2)):
            functions = (*functions, self.body(Place(1, n_functions=i, shard=False)))
        differentiable = not self.one_in(6)
        body = self.body(Place(self.of(*range(1, max_depth + 1), max_depth), len(functions), reverse=differentiable))
        if self.n_names == 0:
            body = (*body, Sow("s0"))
        return Program(functions, body, differentiable)

    def body(self, place: Place) -> Body:
        return tuple(self.node(place) for _ in range(self.integer(1, 2)))

    def node(self, place: Place) -> Node:
        if place.depth == 0 or self.one_in(3):
            plain = [self.sow, self.sow, self.plain]
            if place.n_functions and not place.branch and not place.forward:
                plain.append(self.call)
            return self.of(*plain)(place)
        kinds = [self.jit, self.scope, self.vmap, self.loop, self.loop, self.cond, self.remat, self.custom_jvp]
        kinds += [self.jvp, self.grad, self.while_loop]
        if not place.forward:
            kinds.append(self.custom_vjp)
        if place.shard:
            kinds.append(self.shard)
        return self.of(*kinds)(place)

    def sow(self, place: Place) -> Node:
        return Sow(self.name(place), self.of("array", "unused", "scalar", "tree"))

    def plain(self, place: Place) -> Node:
        return self.of(Op(0), Op(1), Op(2), Outer())

    def call(self, place: Place) -> Node:
        return Call(self.integer(0, place.n_functions - 1), self.integer(1, 2))

    def jit(self, place: Place) -> Node:
        return Jit(self.body(place.inside()), self.of(False, True))

    def scope(self, place: Place) -> Node:
        return Scope(self.of("a", "b"), self.body(place.inside()))

    def vmap(self, place: Place) -> Node:
        return Vmap(self.body(place.inside()), self.integer(0, 1), self.integer(0, 1))

    def loop(self, place: Place) -> Node:
        kind: LoopKind = self.of("scan", "scan_without_xs", "map", "fori")
        reverse = kind.startswith("scan") and self.of(False, True)
        return Loop(self.body(place.inside()), self.integer(1, 3), kind, reverse)

    def while_loop(self, place: Place) -> Node:
        site = self.name(place) if self.one_in(2) else None
        return While(self.body(place.inside()), site, self.of(False, True), stop=place.reverse)

    def cond(self, place: Place) -> Node:
        shared: Node | None = None
        if self.one_in(2):
            shared = self.sow(place.inside(branch=True))
            if place.n_functions and not place.forward and self.one_in(2):
                shared = self.call(place)
        branches = []
        for _ in range(self.integer(2, 3)):
            body = self.body(place.inside(branch=True))
            branches.append((shared, *body) if shared is not None and self.one_in(2) else body)
        return Cond(tuple(branches))

    def remat(self, place: Place) -> Node:
        return Remat(self.body(place.inside()), self.of(*POLICIES), self.of(False, True))

    def custom_jvp(self, place: Place) -> Node:
        through = self.of(False, True)
        return CustomJvp(self.body(place.inside(forward=place.forward or through)), through)

    def custom_vjp(self, place: Place) -> Node:
        return CustomVjp(self.body(place.inside(reverse=True)), self.of(False, True))

    def grad(self, place: Place) -> Node:
        return Grad(self.body(place.inside(reverse=True)), self.of("grad", "value_and_grad", "vjp", "vjp_twice"))

    def jvp(self, place: Place) -> Node:
        linearize = self.of(False, True)
        return Jvp(self.body(place.inside(forward=True, reverse=place.reverse or linearize)), linearize)

    def shard(self, place: Place) -> Node:
        site = self.name(place) if self.one_in(2) else None
        return Shard(self.body(place.inside(shard=False)), self.of(False, True), site)
