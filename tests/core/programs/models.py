"""Steps that call a model, which gets into the program in one of the ways that models do."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from tests.core.programs.nodes import Env, Node, sown
from tests.core.programs.records import Perts, Rec, nudged

from sonde import nnx

SCALES = {"blocks/0": 0.5, "blocks/1": -0.7, "last": 0.3}


class Block(nnx.Module):
    """Marks one value with `sonde.sow`, sometimes in place first.

    `Module.sow` stores the value in the module if no capture runs. A model of the function around must not be changed.
    """

    def __init__(self, scale: float, in_place: bool) -> None:
        self.scale = nnx.Param(jnp.float32(scale))
        self.in_place = in_place

    def __call__(self, x: Any) -> Any:
        y = jnp.tanh(x * self.scale[...] + 0.1)
        if self.in_place:
            with warnings.catch_warnings():  # storing is deprecated; the program also runs without a capture
                warnings.simplefilter("ignore", DeprecationWarning)
                self.sow(nnx.Intermediate, "h", y)
        return 0.5 * x + jnp.sin(sown(y, "u"))


class Net(nnx.Module):
    """Two blocks in a list, and one of its own."""

    def __init__(self, in_place: bool) -> None:
        first, second, last = [Block(scale, in_place) for scale in SCALES.values()]
        self.blocks = nnx.List([first, second])
        self.last = last

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.last(x)


NET, SOWING = Net(in_place=False), Net(in_place=True)
GRAPHDEF, STATE = nnx.split(SOWING)

Way = Literal["closure", "jitted", "twice", "merged", "split and merged", "clone", "made inside", "in a dict"]
WAYS: dict[Way, Callable[[Any], Any]] = {
    "closure": lambda x: NET(x),
    "jitted": lambda x: nnx.jit(lambda net, x: net(x))(NET, x),
    "twice": lambda x: nnx.clone(NET)(NET(x)),
    "merged": lambda x: nnx.merge(GRAPHDEF, STATE)(x),
    "split and merged": lambda x: nnx.merge(*nnx.split(SOWING))(x),
    "clone": lambda x: nnx.clone(SOWING)(x),
    "made inside": lambda x: Net(in_place=True)(x),
    "in a dict": lambda x: {"net": nnx.clone(SOWING)}["net"](x),
}


def structures_agree() -> bool:
    """Submodules that are equal outside a capture are equal inside."""
    first, second = NET.blocks
    jax.tree.map(lambda a, b: jnp.stack([a, b]), first, second)
    return (
        jax.tree.structure(first) == jax.tree.structure(second)
        and nnx.graphdef(first) == nnx.graphdef(second)
        and jax.tree.structure(NET) == jax.tree.structure(nnx.clone(NET))
    )


@dataclasses.dataclass(frozen=True)
class Model(Node):
    """Calls a model. The paths in it begin at the model, after the scopes that are open."""

    way: Way
    compares: bool = False

    def run(self, x: Any, env: Env) -> Any:
        if self.compares and not structures_agree():
            x = x + 1.0
        return WAYS[self.way](x)

    def by_hand(self, x: Any, perts: Perts, env: Env) -> tuple[Any, list[Rec]]:
        recs: list[Rec] = []
        for path, scale in list(SCALES.items()) * (2 if self.way == "twice" else 1):
            y = jnp.tanh(x * jnp.float32(scale) + 0.1)
            for name in ("u",) if self.way in ("closure", "jitted", "twice") else ("h", "u"):
                y = y if perts is None else nudged(y, perts[len(recs)][0])
                recs.append(Rec([y], f"{env.prefix}{path}/{name}", "array"))
            x = 0.5 * x + jnp.sin(y)
        return x, recs
