"""The same model in Flax, Equinox and Sonde: building it, calling it, training it, taking it apart.

The model is 50 small Linear layers, so that the cost of the library counts and not the arithmetic. A call under jit is
the filtered jit of each library (`nnx.jit`, `eqx.filter_jit`). Equinox has no `split` and `merge`; the nearest to them
are `eqx.partition` and `eqx.combine`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from flax import nnx as flax_nnx
from measure import Row, interleaved, main
from sonde import nnx as sonde_nnx

LAYERS, WIDTH = 50, 8
X = jnp.ones((4, WIDTH))
ADAM = optax.adam(1e-3)


def nnx_model(nnx: Any) -> Any:
    class Chain(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.layers = nnx.List([nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS)])

        def __call__(self, x: jax.Array) -> jax.Array:
            for layer in self.layers:
                x = layer(x)
            return x

    return Chain()


class EquinoxChain(eqx.Module):
    layers: list[eqx.nn.Linear]

    def __init__(self) -> None:
        self.layers = [eqx.nn.Linear(WIDTH, WIDTH, key=key) for key in jax.random.split(jax.random.key(0), LAYERS)]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = jax.vmap(layer)(x)
        return x


def nnx_calls(nnx: Any) -> dict[str, Callable[[], Any]]:
    """What is timed, with Flax's package or Sonde's."""
    model = nnx_model(nnx)
    optimizer = nnx.Optimizer(model, ADAM, wrt=nnx.Param)
    forward = nnx.jit(lambda model, x: model(x))

    @nnx.jit
    def step(model: Any, optimizer: Any, x: jax.Array) -> jax.Array:
        loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    return {
        "building the model": lambda: nnx_model(nnx),
        "a forward call": lambda: forward(model, X),
        "a train step": lambda: step(model, optimizer, X),
        "split and merge": lambda: nnx.merge(*nnx.split(model)),
    }


def equinox_calls() -> dict[str, Callable[[], Any]]:
    """What is timed, with Equinox."""
    model = EquinoxChain()
    state = {"model": model, "opt": ADAM.init(eqx.filter(model, eqx.is_array))}
    forward = eqx.filter_jit(lambda model, x: model(x))

    @eqx.filter_jit
    def step(model: Any, opt: Any, x: jax.Array) -> Any:
        loss, grads = eqx.filter_value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        updates, opt = ADAM.update(grads, opt)
        return eqx.apply_updates(model, updates), opt, loss

    def train() -> Any:
        state["model"], state["opt"], loss = step(state["model"], state["opt"], X)
        return loss

    return {
        "building the model": EquinoxChain,
        "a forward call": lambda: forward(model, X),
        "a train step": train,
        "split and merge": lambda: eqx.combine(*eqx.partition(model, eqx.is_array)),
    }


def measure() -> list[Row]:
    by_library = {"flax": nnx_calls(flax_nnx), "sonde": nnx_calls(sonde_nnx), "equinox": equinox_calls()}
    rows: list[Row] = []
    for what in by_library["flax"]:
        times = interleaved({library: calls[what] for library, calls in by_library.items()}, seconds=6)
        rows.append(times.row("sonde", f"{what}: Sonde against Flax", 1.0, beyond_spread=True))
        rows.append(times.row("equinox", f"{what}: Equinox against Flax", None))
    return rows


if __name__ == "__main__":
    main(measure)
