"""Steps that differentiate, or say how to: rematerialization, functions with their own rules, gradients inside."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax
from tests.core.programs.maps import Which
from tests.core.programs.nodes import NOTHING, WEIGHTS, Body, Env, Node, by_hand, layout, run
from tests.core.programs.records import Perts, Rec, gated, no_perts, plus

POLICIES: dict[str, Any] = {
    "default": None,
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "everything": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
}


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
        inner = env.closing_over_nothing()

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
        inner = env.closing_over_nothing()
        if not self.through:
            return by_formula(self.body, x, perts, inner)

        @jax.custom_jvp
        def f(x: Any, perts: Any) -> Any:
            return by_hand(self.body, x, perts, inner)

        @f.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            out, (t, recs) = jax.jvp(lambda x, p: by_hand(self.body, x, p, inner), primals, tangents)
            return out, (0.7 * t, recs)

        return f(x, jax.tree.map(lambda p: gated(x, p), perts))


def by_formula(body: Body, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
    """The body's value with the derivative of `1.5 * sin(x)`."""
    inside = env.where(differentiated=False)
    y, recs = by_hand(body, lax.stop_gradient(x), lax.stop_gradient(perts), inside)
    other = 1.5 * jnp.sin(x)
    return lax.stop_gradient(y) + (other - lax.stop_gradient(other)), recs


@dataclasses.dataclass(frozen=True)
class CustomVjp(Node):
    """A function with its own backward rule: a formula of its own, or the true one scaled.

    Where the rule stands apart, it does not call the function, whose sites then do not run when it is differentiated.
    """

    body: Body
    through: bool
    apart: bool = False

    def run(self, x: Any, env: Env) -> Any:
        inner = env.closing_over_nothing()

        @jax.custom_vjp
        def f(x: Any) -> Any:
            y = run(self.body, x, inner)
            return 1.5 * jnp.sin(x) if self.apart else y

        if self.apart:
            f.defvjp(lambda x: (1.5 * jnp.sin(x), x), lambda x, ct: (1.5 * jnp.cos(x) * ct,))
        elif self.through:
            f.defvjp(lambda x: jax.vjp(lambda x: run(self.body, x, inner), x), lambda pull, ct: pull(0.7 * ct))
        else:
            f.defvjp(lambda x: (f(x), x), lambda x, ct: (1.5 * jnp.cos(x) * ct,))
        return f(x)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        inner = env.closing_over_nothing()
        if self.apart:
            recs = [] if env.differentiated else by_formula(self.body, x, perts, inner)[1]
            return 1.5 * jnp.sin(x), recs
        if not self.through:
            return by_formula(self.body, x, perts, inner)

        @jax.custom_vjp
        def f(x: Any, perts: Any) -> Any:
            return by_hand(self.body, x, perts, inner)

        def forward(x: Any, perts: Any) -> Any:
            y, pull, recs = jax.vjp(lambda x, p: by_hand(self.body, x, p, inner), x, perts, has_aux=True)
            return (y, recs), pull

        f.defvjp(forward, lambda pull, cts: pull(0.7 * cts[0]))
        return f(x, jax.tree.map(lambda p: gated(x, p), perts))


GradKind = Literal["grad", "value_and_grad", "vjp", "vjp_twice"]


@dataclasses.dataclass(frozen=True)
class Grad(Node):
    """A reverse differentiation inside the program, with respect to the input or to what is closed over."""

    body: Body
    kind: GradKind
    wrt: Which = "x"

    def starts(self, x: Any) -> tuple[Any, ...]:
        return {"x": (x,), "outer": (x * 0.5,), "both": (x, x * 0.5)}[self.wrt]

    def arguments(self, x: Any, given: tuple[Any, ...]) -> tuple[Any, Any]:
        """What the body works on and closes over, some of it differentiated."""
        return {"x": (given[0], x * 0.5), "outer": (x, given[0]), "both": given}[self.wrt]

    def run(self, x: Any, env: Env) -> Any:
        def inside(*given: Any) -> Any:
            y, outer = self.arguments(x, given)
            return run(self.body, y, env.closing_over(outer))

        starts = self.starts(x)
        argnums = tuple(range(len(starts)))
        loss = lambda *given: jnp.sum(inside(*given) * WEIGHTS)
        if self.kind == "grad":
            return jnp.sin(x + sum(jax.grad(loss, argnums)(*starts)))
        if self.kind == "value_and_grad":
            value, gradients = jax.value_and_grad(loss, argnums)(*starts)
            return jnp.sin(x + value + sum(gradients))
        y, pull = jax.vjp(inside, *starts)
        if self.kind == "vjp":
            return jnp.sin(x + y + sum(pull(x)))
        return jnp.sin(x + sum(pull(x)) + sum(pull(y)))

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        env = env.where(differentiated=True)

        def inside(given: tuple[Any, ...], perts: Perts) -> tuple[Any, list[Rec]]:
            y, outer = self.arguments(x, given)
            return by_hand(self.body, y, perts, env.closing_over(outer))

        perts = plus(no_perts(layout(self.body, env)), perts)
        y, pull, recs = jax.vjp(inside, self.starts(x), perts, has_aux=True)
        cotangent = {"grad": WEIGHTS, "value_and_grad": WEIGHTS, "vjp": x, "vjp_twice": x + y}[self.kind]
        gradients, at_sites = pull(jnp.asarray(cotangent, x.dtype))
        value = {"grad": 0.0, "value_and_grad": jnp.sum(y * WEIGHTS), "vjp": y, "vjp_twice": 0.0}[self.kind]
        return jnp.sin(x + value + sum(gradients)), [rec.with_gradient(g) for rec, g in zip(recs, at_sites)]


Start = Literal["x", "outer", "nothing"]


@dataclasses.dataclass(frozen=True)
class Pullbacks(Node):
    """Two backward passes from one value, which may be mapped differently from the value and from each other."""

    body: Body
    start: Start = "nothing"

    def starts(self, x: Any, env: Env) -> Any:
        given = {"x": x, "outer": env.outer, "nothing": NOTHING}[self.start]
        return 0.9 * jnp.asarray(given, x.dtype)

    def run(self, x: Any, env: Env) -> Any:
        outer = jnp.asarray(env.outer, x.dtype)
        inside = lambda y: run(self.body, y, env.closing_over(0.5 * y))
        _, pull = jax.vjp(inside, self.starts(x, env))
        return jnp.sin(x + pull(x)[0] + pull(outer)[0])

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        env = env.where(differentiated=True)
        inside = lambda y, perts: by_hand(self.body, y, perts, env.closing_over(0.5 * y))
        perts = plus(no_perts(layout(self.body, env)), perts)
        _, pull, recs = jax.vjp(inside, self.starts(x, env), perts, has_aux=True)
        gradient, at_sites = pull(x + jnp.asarray(env.outer, x.dtype))
        return jnp.sin(x + gradient), [rec.with_gradient(g) for rec, g in zip(recs, at_sites)]


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
