"""Programs of low precision against the same in float32: right ones agree, a small factor is not lost in rounding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from tests.port.test_pairs import LAYERS, forms, generated

from sonde.port.rounding import rounded_otherwise
from sonde.port.widening import Known, widened
from sonde.programs.traced import trace
from sonde.tools import compare

RNG = np.random.default_rng(0)
WEIGHT = jnp.asarray(RNG.normal(size=(6, 6)) / 2, jnp.float32)
X = jnp.asarray(RNG.normal(size=(4, 6)), jnp.float32)


def check(seed: int) -> None:
    """A generated program in bfloat16 against itself in float32, in two forms; then with a factor of two percent."""
    layer, weights, x = generated(seed)
    low = {name: w.astype(jnp.bfloat16) for name, w in weights.items()}
    names = ("loop", "scan", "list", "jit")
    first, second = (names[i] for i in np.random.default_rng(seed).choice(len(names), 2, replace=False))
    rough = lambda x: forms(layer, low)[first](x.astype(jnp.bfloat16), jnp.ones(LAYERS, jnp.bfloat16))
    exact = forms(layer, weights)[second]
    right = compare(rough, exact, grads=False)(x)
    assert right.first is None and "computed in float32" in right.precision, f"seed {seed}: {right}"
    factors = jnp.ones(LAYERS).at[seed % LAYERS].set(1.02)
    if np.allclose(exact(x), exact(x, factors), rtol=1e-4, atol=1e-5):
        return  # the next layer divides by the norm
    assert compare(rough, lambda x: exact(x, factors), grads=False)(x).first is not None, f"seed {seed}"


@pytest.mark.parametrize("seed", [3])
def test_a_program_in_two_precisions(seed: int) -> None:
    check(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4, 24))
def test_many_programs_in_two_precisions(seed: int) -> None:
    check(seed)


def net(x: Any, dtype: Any, weight: Any = WEIGHT, factor: float = 1.0, exact: bool = False) -> Any:
    x = x.astype(dtype)
    h = jax.nn.gelu(x @ weight.astype(dtype) * 0.3, approximate=not exact) * factor
    return x + h / jnp.sqrt(jnp.asarray(6, dtype))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_mistakes_that_are_smaller_than_the_rounding_of_the_result(dtype: Any) -> None:
    rough = lambda x: net(x, dtype)
    assert compare(rough, lambda x: net(x, jnp.float32))(X).first is None
    scaled = compare(rough, lambda x: net(x, jnp.float32, factor=1.01), grads=False)(X)
    assert "with mul by 1 in place of 1.01: the programs then agree to" in str(scaled)
    other = compare(rough, lambda x: net(x, jnp.float32, exact=True), grads=False)(X)
    assert "with the tanh approximation of gelu in place of the exact gelu" in str(other)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_numbers_that_are_written_otherwise(dtype: Any) -> None:
    """1 / sqrt(37) and a division by sqrt(37) round to different numbers of 16 bits."""
    times = lambda x: jnp.tanh((x @ WEIGHT).astype(jnp.bfloat16) * 37**-0.5) * 1.2345
    divided = lambda x: 1.2345 * jnp.tanh((x @ WEIGHT).astype(dtype) / 37**0.5)
    assert compare(times, divided)(X).first is None
    wrong = lambda x: 1.2345 * jnp.tanh((x @ WEIGHT).astype(dtype) / 39**0.5)
    assert compare(times, wrong, grads=False)(X).first is not None


def test_a_number_that_both_programs_have_in_low_precision_hides_no_difference() -> None:
    def normed(x: Any, eps: float) -> Any:
        h = ((x @ WEIGHT).astype(jnp.bfloat16) * 37**-0.5).astype(jnp.float32)
        return (h * lax.rsqrt((h * h).mean(-1, keepdims=True) + eps)).astype(jnp.bfloat16)

    assert compare(lambda x: normed(x, 1e-5), lambda x: normed(x, 1e-5))(X).first is None
    found = compare(lambda x: normed(x, 1e-5), lambda x: normed(x, 2e-5), grads=False)(X)
    assert "with eps=1e-05 in place of 2e-05" in str(found)


def test_weights_that_were_stored_in_low_precision() -> None:
    low = WEIGHT.astype(jnp.bfloat16)
    single = lambda x: net(x, jnp.float32)
    assert compare(lambda x: net(x, jnp.bfloat16, low), single)(X).first is None
    scaled = low.at[1, 2].multiply(1.05)
    assert compare(lambda x: net(x, jnp.bfloat16, scaled), single, grads=False)(X).first is not None


def test_a_difference_that_low_precision_alone_makes_is_said_to_be() -> None:
    """Positions above 256 are no whole numbers in bfloat16: the results differ, and nothing else is wrong."""
    positions = lambda x, dtype: lax.iota(dtype, 300).astype(jnp.int32) + x
    found = compare(lambda x: positions(x, jnp.bfloat16), lambda x: positions(x, jnp.float32))(jnp.int32(0))
    assert found.first is not None
    assert found.precision.endswith("low precision alone makes the difference")


def test_every_kind_of_inner_program() -> None:
    def f(x: Any, dtype: Any) -> Any:
        def body(c: Any, w: Any) -> Any:
            c = lax.cond(c.sum() > 0, lambda c: jnp.tanh(c @ w), lambda c: jax.nn.relu(c @ w), c)
            return jax.checkpoint(lambda c: c / (1 + jnp.abs(c)))(c), c.sum(-1)

        c, sums = lax.scan(body, x.astype(dtype), jnp.stack([WEIGHT, -WEIGHT]).astype(dtype))
        c = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * dtype(0.75)), (0, c))[1]
        bits = lax.bitcast_convert_type(x.astype(dtype), jnp.uint16) if dtype is not jnp.float32 else None
        return lax.reduce_precision(c, 8, 7) if dtype is not jnp.float32 else c, jax.vmap(jnp.cumsum)(sums), bits

    rough, exact = trace(lambda x: f(x, jnp.bfloat16), (X,), {}), trace(lambda x: f(x, jnp.float32), (X,), {})
    wide = widened(rough, Known.of(exact))
    for one, other in zip(wide(*wide.values), exact(*exact.values)[:2]):
        assert one.dtype == jnp.float32
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    bits = lax.bitcast_convert_type(X.astype(jnp.bfloat16), jnp.uint16)
    np.testing.assert_array_equal(wide(*wide.values)[2], bits)


def test_programs_of_shards() -> None:
    """What runs on a mesh alone, such as a sum over it, is not traced without it."""
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    by_rows = jax.sharding.PartitionSpec("rows")

    def net(x: Any, dtype: Any) -> Any:
        part = lambda x: jnp.tanh(lax.scan(lambda c, _: (c * dtype(1.5), None), x, length=2)[0]) / lax.psum(x, "rows")
        return jax.shard_map(part, mesh=mesh, in_specs=by_rows, out_specs=by_rows)(x.astype(dtype))

    x = jnp.abs(X) + 1
    for f in (net, jax.grad(lambda x, dtype: net(x, dtype).sum())):
        exact = trace(lambda x: f(x, jnp.float32), (x,), {})
        for draw in range(2):
            moved = rounded_otherwise(exact, draw)[0]
            assert not np.array_equal(moved, f(x, jnp.float32))
            np.testing.assert_allclose(moved, f(x, jnp.float32), rtol=1e-5, atol=1e-6)
        rough = trace(lambda x: f(x, jnp.bfloat16), (x,), {})
        wide = widened(rough, Known.of(exact))
        np.testing.assert_allclose(wide(*wide.values)[0], f(x, jnp.float32), rtol=1e-5, atol=1e-6)
