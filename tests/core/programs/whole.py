"""Whole programs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from tests.core.programs.maps import explicit_mesh
from tests.core.programs.nodes import WEIGHTS, Body, Env, by_hand, layout, run
from tests.core.programs.records import Perts, Rec, no_perts

# Those that JAX 0.12 can run most programs with. `jax_scan3` is not among them: it has no backward pass.
UPGRADES = ("jax_remat3", "jax_custom_jvp3", "jax_custom_vjp3") if jax.__version_info__ >= (0, 12) else ()


@dataclasses.dataclass(frozen=True)
class Program:
    """Jitted functions, each of which may call the ones before it, and a body that calls them."""

    functions: tuple[Body, ...]
    body: Body
    differentiable: bool = True
    explicit: bool = False
    # JAX's upgrade flags that are on.
    upgrades: tuple[str, ...] = ()

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """What the program runs in: upgrade flags, and perhaps a mesh whose axes are explicit."""
        with contextlib.ExitStack() as stack:
            if self.explicit:
                stack.enter_context(jax.set_mesh(explicit_mesh()))
            for flag in self.upgrades:
                jax.config.update(flag, True)
                stack.callback(jax.config.update, flag, False)
            yield

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
