"""Programs that do the same in another form: no difference is claimed, and a planted factor is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from sonde import sow
from sonde.tools import compare

WIDTH, LAYERS, ROWS = 5, 3, 4

Layer = Callable[[Any, dict[str, Any], Any], Any]


def normed(x: Any) -> Any:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


PARTS: list[Callable[[Any, dict[str, Any]], Any]] = [
    lambda x, w: x @ w["a"],
    lambda x, w: x + jnp.tanh(x @ w["b"]),
    lambda x, w: normed(x) * w["s"],
    lambda x, w: jax.nn.gelu(x) + w["t"],
    lambda x, w: jax.nn.softmax(x @ w["a"], -1) @ w["b"],
    lambda x, w: jnp.where(x > 0, x, 0.1 * x),
    lambda x, w: x - x.mean(-1, keepdims=True),
    lambda x, w: jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(x, 0),
    lambda x, w: jnp.sort(x, -1) * w["s"],
    lambda x, w: jnp.cumsum(x, -1) / WIDTH,
    lambda x, w: (x + 100.0) - 100.0 * w["s"],
]


def generated(seed: int) -> tuple[Callable[[Any, dict[str, Any], Any], Any], dict[str, Any], Any]:
    """A layer of random parts with sites, the weights of all layers, and an input."""
    rng = np.random.default_rng(seed)
    parts = [PARTS[i] for i in rng.integers(0, len(PARTS), rng.integers(2, 5))]
    shapes = {"a": (WIDTH, WIDTH), "b": (WIDTH, WIDTH), "s": (WIDTH,), "t": (WIDTH,)}
    weights = {
        name: jnp.asarray(rng.normal(size=(LAYERS, *shape)) / np.sqrt(WIDTH), jnp.float32)
        for name, shape in shapes.items()
    }
    marks = rng.random(len(parts)) < 0.6

    def layer(x: Any, w: dict[str, Any], factor: Any) -> Any:
        for i, (part, mark) in enumerate(zip(parts, marks)):
            x = part(x, w)
            x = sow(x, f"part_{'abcde'[i]}") if mark else x
        return normed(x) * factor

    return layer, weights, jnp.asarray(rng.normal(size=(ROWS, WIDTH)), jnp.float32)


def forms(layer: Any, weights: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """One program in several forms. Each takes a factor for every layer."""
    ones = jnp.ones(LAYERS)

    def loop(x: Any, factors: Any = ones) -> Any:
        for i in range(LAYERS):
            x = layer(x, {name: w[i] for name, w in weights.items()}, factors[i])
        return x

    def listed(x: Any, factors: Any = ones) -> Any:
        for one, factor in zip(
            [{name: jnp.array(w[i]) for name, w in weights.items()} for i in range(LAYERS)], factors
        ):
            x = layer(x, one, factor)
        return x

    def scan(x: Any, factors: Any = ones, body: Any = layer) -> Any:
        return lax.scan(lambda c, w: (body(c, *w), None), x, (weights, factors))[0]

    mesh = jax.make_mesh((ROWS,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    by_rows, whole = jax.sharding.PartitionSpec("rows"), jax.sharding.PartitionSpec()
    on_mesh = lambda x: jax.device_put(x, jax.sharding.NamedSharding(mesh, by_rows))
    sharded = jax.shard_map(loop, mesh=mesh, in_specs=(by_rows, whole), out_specs=by_rows)

    return {
        "loop": loop,
        "list": listed,
        "scan": scan,
        "jit": jax.jit(loop),
        "remat": lambda x, factors=ones: scan(x, factors, jax.checkpoint(layer)),
        "mesh": lambda x, factors=ones: jax.jit(scan)(on_mesh(x), factors),
        "shard_map": lambda x, factors=ones: sharded(x, factors),
        "vmap": lambda x, factors=ones: jax.vmap(lambda row: loop(row, factors))(x),
    }


def check(seed: int) -> None:
    layer, weights, x = generated(seed)
    programs = forms(layer, weights)
    names = list(programs)
    first, second = (names[i] for i in np.random.default_rng(seed + 1).choice(len(names), 2, replace=False))
    same = compare(programs[first], programs[second])(x)
    assert same.first is None, f"seed {seed}, {first} against {second}: {same}"
    assert not same.only_first and not same.only_second, f"seed {seed}, {first} against {second}: {same}"
    factors = jnp.ones(LAYERS).at[seed % LAYERS].set(1.5)
    plain, changed = (np.asarray(programs["loop"](x, by)) for by in (jnp.ones(LAYERS), factors))
    if np.allclose(plain, changed, rtol=1e-4, atol=1e-5):
        return  # the next layer divides by the norm
    planted = compare(programs[first], lambda x: programs[second](x, factors))(x)
    assert planted.first is not None, f"seed {seed}, {first} against {second}"


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(3))
def test_forms_of_one_program(seed: int) -> None:
    check(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3, 200))
def test_forms_of_many_programs(seed: int) -> None:
    check(seed)
