"""Whole programs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from tests.core.programs.maps import explicit_mesh
from tests.core.programs.nodes import WEIGHTS, Body, Env, by_hand, layout, run
from tests.core.programs.records import Perts, Rec, no_perts


@dataclasses.dataclass(frozen=True)
class Program:
    """Jitted functions, each of which may call the ones before it, and a body that calls them."""

    functions: tuple[Body, ...]
    body: Body
    differentiable: bool = True
    explicit: bool = False

    def surroundings(self) -> contextlib.AbstractContextManager[Any]:
        """What the program runs in: a mesh whose axes are explicit, or nothing."""
        return jax.set_mesh(explicit_mesh()) if self.explicit else contextlib.nullcontext()

    def make(self) -> Callable[[Any], Any]:
        """The program as a function, with jitted functions of its own."""
        functions: tuple[Any, ...] = ()
        for body in self.functions:
            here = functools.partial(lambda body, env, x, outer: run(body, x, env.closing_over(outer)), body)
            functions = (*functions, jax.jit(functools.partial(here, Env(functions))))
        return lambda x: run(self.body, x, Env(functions))

    def by_hand(self, x: Any) -> tuple[Any, list[Rec]]:
        """The result and what passed the sites."""
        return by_hand(self.body, x, None, Env(self.functions))

    def grad_by_hand(self, x: Any) -> tuple[Any, list[Rec]]:
        """The gradient of `loss_of(program)`, and what passed the sites, with gradients."""
        env = Env(self.functions, differentiated=True)

        def loss(x: Any, perts: Perts) -> Any:
            y, recs = by_hand(self.body, x, perts, env)
            return jnp.sum(y * WEIGHTS), recs

        zeros = no_perts(layout(self.body, env))
        (gradient, at_sites), recs = jax.grad(loss, argnums=(0, 1), has_aux=True)(x, zeros)
        return gradient, [rec.with_gradient(g) for rec, g in zip(recs, at_sites)]


def loss_of(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jnp.sum(f(x) * WEIGHTS)
