"""The model of the benchmarks: a transformer in plain JAX, with four sites in every block.

It is written once and takes the function that marks a value, so that the marked program, the one that returns
its intermediates by hand and the one without any marks are the same program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import sonde

Mark = Callable[[jax.Array, str], jax.Array]
Params = Any  # a list with a dict per block, or one dict of stacked arrays
SITES_PER_BLOCK = 4


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the model and its input are."""

    blocks: int = 12
    width: int = 64
    heads: int = 4
    batch: int = 2
    length: int = 16
    dtype: Any = jnp.float32

    @property
    def sites(self) -> int:
        return self.blocks * SITES_PER_BLOCK


def make(size: Size) -> tuple[list[dict[str, jax.Array]], jax.Array]:
    """Parameters and an input."""
    shapes = {
        "qkv": (size.width, 3 * size.width),
        "proj": (size.width, size.width),
        "up": (size.width, 4 * size.width),
        "down": (4 * size.width, size.width),
    }

    def block(key: jax.Array) -> dict[str, jax.Array]:
        keys = dict(zip(shapes, jax.random.split(key, len(shapes))))
        p = {n: jax.random.normal(keys[n], s, size.dtype) * s[0] ** -0.5 for n, s in shapes.items()}
        return {**p, "scale1": jnp.ones(size.width, size.dtype), "scale2": jnp.ones(size.width, size.dtype)}

    key = jax.random.key(0)
    x = jax.random.normal(key, (size.batch, size.length, size.width), size.dtype)
    return [block(k) for k in jax.random.split(key, size.blocks)], x


def stacked(params: list[dict[str, jax.Array]]) -> dict[str, jax.Array]:
    """The parameters of all blocks in one array each."""
    return jax.tree.map(lambda *xs: jnp.stack(xs), *params)


def model(heads: int = 4, *, remat: bool = False, scan: bool = False) -> Callable[..., jax.Array]:
    """The function `forward(params, x, mark=sonde.sow)`.

    Args:
        heads: How many attention heads there are.
        remat: Whether blocks are under `jax.checkpoint`.
        scan: Whether blocks are the iterations of one loop; the parameters are then stacked.
    """

    def block(p: dict[str, jax.Array], x: jax.Array, mark: Mark) -> jax.Array:
        batch, length, width = x.shape
        q, k, v = jnp.split(_normed(x, p["scale1"]) @ p["qkv"], 3, axis=-1)
        q, k, v = (a.reshape(batch, length, heads, width // heads) for a in (q, k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (width // heads) ** -0.5
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(batch, length, width)
        x = mark(x + mark(mixed @ p["proj"], "attn"), "mid")
        h = mark(jax.nn.gelu(_normed(x, p["scale2"]) @ p["up"]), "hidden")
        return mark(x + h @ p["down"], "out")

    def over_scan(params: Params, x: jax.Array, mark: Mark = sonde.sow) -> jax.Array:
        def step(x: jax.Array, p: dict[str, jax.Array]) -> tuple[jax.Array, None]:
            return block(p, x, mark), None

        with sonde.scope("blocks"):
            return jax.lax.scan(jax.checkpoint(step) if remat else step, x, params)[0]

    def forward(params: Params, x: jax.Array, mark: Mark = sonde.sow) -> jax.Array:
        for i, p in enumerate(params):
            with sonde.scope(f"blocks/{i}"):
                run = jax.checkpoint(lambda p, x: block(p, x, mark)) if remat else lambda p, x: block(p, x, mark)
                x = run(p, x)
        return x

    return over_scan if scan else forward


def _normed(x: jax.Array, scale: jax.Array) -> jax.Array:
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-6) * scale


def unmarked(value: jax.Array, name: str) -> jax.Array:
    """A mark that does nothing."""
    del name
    return value


def by_hand(forward: Callable[..., Any]) -> Callable[..., tuple[Any, list[jax.Array]]]:
    """The function that returns its intermediates as well."""

    def run(params: Params, x: jax.Array) -> tuple[Any, list[jax.Array]]:
        seen: list[jax.Array] = []

        def keep(value: jax.Array, name: str) -> jax.Array:
            del name
            seen.append(value)
            return value

        return forward(params, x, keep), seen

    return run


def loss_of(forward: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A loss, with the arguments of `forward`."""

    def loss(params: Params, x: jax.Array, mark: Mark = sonde.sow) -> jax.Array:
        return (forward(params, x, mark) ** 2).mean()

    return loss


@jax.custom_vjp
def _tap(value: jax.Array, sink: jax.Array) -> jax.Array:
    del sink
    return value


_tap.defvjp(lambda value, sink: (value, None), lambda _, cotangent: (cotangent, cotangent))


def gradients_by_hand(forward: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Loss, gradients of the parameters, every intermediate and its gradient, as one would compute them without Sonde.

    The gradients come out at sinks whose numbers are never read: the cheapest way that JAX offers by hand.
    """
    loss = loss_of(forward)

    def run(params: Params, x: jax.Array) -> Any:
        _, intermediates = jax.eval_shape(by_hand(forward), params, x)
        sinks = [jnp.zeros(v.shape, v.dtype) for v in intermediates]

        def with_sinks(params: Params, sinks: list[jax.Array]) -> tuple[jax.Array, list[jax.Array]]:
            seen: list[jax.Array] = []

            def keep(value: jax.Array, name: str) -> jax.Array:
                del name
                value = _tap(value, sinks[len(seen)])
                seen.append(value)
                return value

            return loss(params, x, keep), seen

        (value, seen), (grads, at_sites) = jax.value_and_grad(with_sinks, argnums=(0, 1), has_aux=True)(params, sinks)
        return (value, grads), seen, at_sites

    return run
