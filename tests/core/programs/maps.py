"""Steps that map: `vmap` over one argument or the other, and meshes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from tests.core.programs.nodes import WEIGHTS, Body, Env, Node, by_hand, layout, run, sown
from tests.core.programs.records import Perts, Rec, no_perts, nudged, plus

Which = Literal["x", "outer", "both"]
FACTORS = (1.0, -0.6, 0.3)


def variants(x: Any, axis: int, factors: Sequence[float]) -> Any:
    return jnp.stack([x * w + 0.2 * i for i, w in enumerate(factors)], axis)


def map_by_hand(
    f: Callable[..., tuple[Any, list[Rec]]],
    args: Sequence[Any],
    in_axes: Any,
    perts: Perts,
    *,
    over_mesh: bool,
    name: str | None = None,
) -> tuple[Any, list[Rec]]:
    """Maps `f(*args, perts)`; the new axis of what is recorded comes after its loops.

    By hand everything gets the axis, also what does not vary over it.
    """
    first = [a if axis is None else jax.tree.map(lambda a: jnp.take(a, 0, axis), a) for a, axis in zip(args, in_axes)]
    one = lambda *a: jax.vmap(lambda _: f(*a, None)[1], axis_name=name)(jnp.zeros(2))
    axes = [rec.out_axes(over_mesh=over_mesh) for rec in jax.eval_shape(one, *first)]
    pert_axes = None if perts is None else [[a for _ in p] for p, a in zip(perts, [r.value[0] for r in axes])]
    y, recs = jax.vmap(f, in_axes=(*in_axes, pert_axes), out_axes=(0, axes), axis_name=name)(*args, perts)
    return y, [rec.inside(mesh=over_mesh, mapped=not over_mesh) for rec in recs]


@dataclasses.dataclass(frozen=True)
class Vmap(Node):
    """Maps over some variants of the input, or of what is closed over, along any axis."""

    body: Body
    in_axis: int
    out_axis: int
    factors: tuple[float, ...] = FACTORS
    over: Which = "x"
    # Over the axis of an explicit mesh.
    spread: bool = False
    axis_name: str | None = None

    def inputs(self, x: Any) -> tuple[tuple[Any, Any], tuple[int | None, int | None]]:
        """What the body works on and closes over, and the axes along which these are mapped."""
        xs = variants(x, self.in_axis, self.factors) if self.over != "outer" else x
        outers = variants(0.7 * x, self.in_axis, self.factors) if self.over != "x" else x
        return (xs, outers), (
            self.in_axis if self.over != "outer" else None,
            self.in_axis if self.over != "x" else None,
        )

    def run(self, x: Any, env: Env) -> Any:
        args, in_axes = self.inputs(x)
        if self.spread:
            args = tuple(a if axis is None else spread(a, axis) for a, axis in zip(args, in_axes))
        body = lambda y, outer: run(self.body, y, self.inside(outer, env))
        mapped = jax.vmap(body, in_axes, self.out_axis, axis_name=self.axis_name)
        return mapped(*args).mean(self.out_axis)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        one = lambda y, outer, p: by_hand(self.body, y, p, self.inside(outer, env))
        y, recs = map_by_hand(one, *self.inputs(x), perts, over_mesh=False, name=self.axis_name)
        return y.mean(0), recs

    def inside(self, outer: Any, env: Env) -> Env:
        return env.closing_over(outer) if self.axis_name is None else env.closing_over(outer).along(self.axis_name)


@dataclasses.dataclass(frozen=True)
class Grid(Node):
    """Two axes of the same size: one maps the input, the other a closed-over value."""

    body: Body
    input_first: bool

    def inputs(self, x: Any) -> tuple[Any, Any]:
        return variants(x, 0, FACTORS), variants(0.7 * x, 0, FACTORS)

    @property
    def in_axes(self) -> tuple[tuple[int | None, int | None], tuple[int | None, int | None]]:
        """Of the inner map and of the outer one."""
        return ((None, 0), (0, None)) if self.input_first else ((0, None), (None, 0))

    def run(self, x: Any, env: Env) -> Any:
        inner, outer = self.in_axes
        f = lambda y, closed: run(self.body, y, env.closing_over(closed))
        return jax.vmap(jax.vmap(f, inner), outer)(*self.inputs(x)).mean((0, 1))

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        inner, outer = self.in_axes
        f = lambda y, closed, p: by_hand(self.body, y, p, env.closing_over(closed))
        row = lambda y, closed, p: map_by_hand(f, (y, closed), inner, p, over_mesh=False)
        y, recs = map_by_hand(row, self.inputs(x), outer, perts, over_mesh=False)
        return y.mean((0, 1)), recs


@dataclasses.dataclass(frozen=True)
class Sides(Node):
    """A function of two arguments, of which one, both or none are mapped, and one, both or none differentiated."""

    left: Body
    right: Body
    mapped: tuple[bool, bool] = (False, True)
    differentiated: tuple[bool, bool] = (True, True)
    product: bool = False

    def inputs(self, x: Any) -> tuple[list[Any], list[int | None]]:
        sides = [0.8 * x + 0.1, jnp.cos(x)]
        args = [variants(a, 0, FACTORS) if m else a for a, m in zip(sides, self.mapped)]
        return args, [0 if m else None for m in self.mapped]

    @property
    def argnums(self) -> tuple[int, ...]:
        return tuple(i for i in (0, 1) if self.differentiated[i])

    def put_together(self, left: Any, right: Any) -> Any:
        return left * right if self.product else 2 * left + 3 * right

    def run(self, x: Any, env: Env) -> Any:
        def both(w: Any, v: Any) -> Any:
            left = run(self.left, w, env.closing_over(0.5 * w))
            return self.put_together(left, run(self.right, v, env.closing_over(0.5 * v)))

        f = both
        if self.argnums:
            gradient = jax.grad(lambda w, v: jnp.sum(both(w, v) * WEIGHTS), self.argnums)
            f = lambda w, v: sum(gradient(w, v))
        args, in_axes = self.inputs(x)
        if any(self.mapped):
            return jnp.sin(x + jax.vmap(f, in_axes)(*args).mean(0))
        return jnp.sin(x + f(*args))

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        env = env.where(differentiated=env.differentiated or bool(self.argnums))
        n_left = len(layout(self.left, env))

        def both(w: Any, v: Any, perts: Perts) -> tuple[Any, list[Rec]]:
            mine, other = (None, None) if perts is None else (perts[:n_left], perts[n_left:])
            left, recs = by_hand(self.left, w, mine, env.closing_over(0.5 * w))
            right, more = by_hand(self.right, v, other, env.closing_over(0.5 * v))
            return self.put_together(left, right), recs + more

        def f(w: Any, v: Any, perts: Perts) -> tuple[Any, list[Rec]]:
            if not self.argnums:
                return both(w, v, perts)
            perts = plus(no_perts(layout(self.left, env) + layout(self.right, env)), perts)
            args = [w, v]

            def of_some(some: Sequence[Any], perts: Perts) -> tuple[Any, list[Rec]]:
                given = iter(some)
                return both(*[next(given) if i in self.argnums else args[i] for i in (0, 1)], perts)

            y, pull, recs = jax.vjp(of_some, [args[i] for i in self.argnums], perts, has_aux=True)
            gradients, at_sites = pull(jnp.asarray(WEIGHTS, y.dtype))
            return sum(gradients), [rec.with_gradient(g) for rec, g in zip(recs, at_sites)]

        args, in_axes = self.inputs(x)
        if any(self.mapped):
            y, recs = map_by_hand(f, args, in_axes, perts, over_mesh=False)
            return jnp.sin(x + y.mean(0)), recs
        y, recs = f(*args, perts)
        return jnp.sin(x + y), recs


def explicit_mesh() -> Any:
    """For programs whose arrays have their sharding in their types."""
    return jax.make_mesh((2,), ("e",), axis_types=(AxisType.Explicit,))


def spread(x: Any, axis: int) -> Any:
    """Puts the parts of an array on the devices of the explicit mesh."""
    return jax.reshard(x, PartitionSpec(*[None] * axis, "e"))


@dataclasses.dataclass(frozen=True)
class Shard(Node):
    """Runs on two devices or on four, on values that vary over them and perhaps on one that does not."""

    body: Body
    psum: bool = False
    replicated_site: str | None = None
    # Whether JAX checks over which axes values vary.
    checked: bool = True
    # A mesh of two by two: the values vary over both axes, or over the first, where the second is not mapped.
    second: Literal["none", "varies", "not mapped"] = "none"

    def mesh(self) -> Any:
        sizes, names = ((2,), ("d",)) if self.second == "none" else ((2, 2), ("d", "e"))
        return jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))

    def shards(self, x: Any) -> Any:
        pair = jnp.stack([x, 0.5 - x])
        return jnp.stack([pair, 0.6 * pair + 0.1], 1) if self.second == "varies" else pair

    def run(self, x: Any, env: Env) -> Any:
        inner = env.closing_over_nothing().along("d")
        axes = ("d", "e") if self.second == "varies" else ("d",)
        own = (0,) * len(axes)

        def per_shard(shard: Any, same: Any) -> Any:
            y = shard[own]
            if self.replicated_site is not None:
                y = y + 0.3 * sown(same * 2, self.replicated_site)
            y = run(self.body, y, inner)
            return lax.psum(y, axes) if self.psum else jnp.expand_dims(y, range(len(axes)))

        spec = PartitionSpec(*axes)
        out_spec = PartitionSpec() if self.psum else spec
        specs = {"in_specs": (spec, PartitionSpec()), "out_specs": out_spec}
        manual: Any = {"axis_names": {"d"}} if self.second == "not mapped" else {}
        mapped = jax.shard_map(per_shard, mesh=self.mesh(), **specs, check_vma=self.checked, **manual)
        if manual:
            mapped = jax.jit(mapped)  # JAX has no eager ones
        y = mapped(self.shards(x), x)
        return jnp.sin(y if self.psum else y.sum(tuple(range(len(axes)))))

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        same = x * 2
        replicated = [] if self.replicated_site is None else [Rec([same], env.prefix + self.replicated_site, "array")]
        inner = env.closing_over_nothing().along("d")

        def one(shard: Any, perts: Perts) -> tuple[Any, list[Rec]]:
            """One device. If JAX does not check, the value that is the same everywhere is taken to vary."""
            own = [] if self.checked else replicated
            if own:
                value = same if perts is None else nudged(same, perts[0][0])
                shard, perts = shard + 0.3 * value, None if perts is None else perts[1:]
                own = [dataclasses.replace(own[0], value=[value])]
            y, recs = by_hand(self.body, shard, perts, inner)
            return y, own + recs

        shards, first = self.shards(x), []
        if self.checked and replicated:
            same = same if perts is None else nudged(same, perts[0][0])
            perts = None if perts is None else perts[1:]
            shards, first = shards + 0.3 * same, [dataclasses.replace(replicated[0], value=[same])]
        if self.second != "varies":
            y, recs = map_by_hand(one, [shards], [0], perts, over_mesh=True, name="d")
            return jnp.sin(y.sum(0)), first + recs
        row = lambda shard, p: map_by_hand(one, [shard], [0], p, over_mesh=True, name="e")
        y, recs = map_by_hand(row, [shards], [0], perts, over_mesh=True, name="d")
        return jnp.sin(y.sum((0, 1))), first + recs
