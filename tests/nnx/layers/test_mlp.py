"""The feed-forward layer, plain and gated, against the formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde
from sonde import nnx

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4)), jnp.float32)


@pytest.mark.parametrize(("gated", "use_bias"), [(True, False), (False, True)])
def test_the_formula(gated, use_bias):
    mlp = nnx.MLP(4, 6, activation=jnp.tanh, gated=gated, use_bias=use_bias, rngs=nnx.Rngs(0))
    for linear in (mlp.up, mlp.gate, mlp.down):
        if linear is not None and use_bias:
            linear.bias[...] += jnp.arange(linear.bias.size)

    def of(linear, x):
        return x @ linear.kernel[...] + (linear.bias[...] if use_bias else 0)

    hidden = jnp.tanh(of(mlp.gate, X)) * of(mlp.up, X) if gated else jnp.tanh(of(mlp.up, X))
    out, records = sonde.capture(mlp)(X)
    np.testing.assert_allclose(out, of(mlp.down, hidden), rtol=1e-5, atol=1e-6)
    assert [path for path in records if "/" not in path] == ["pre", *(["up"] if gated else []), "hidden", "out"]
    np.testing.assert_allclose(records["pre"].value, of(mlp.gate if gated else mlp.up, X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(records["hidden"].value, hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(records["out"].value, out)


def test_the_default_is_gelu_and_no_gate():
    mlp = nnx.MLP(4, 6, rngs=nnx.Rngs(0))
    hidden = jax.nn.gelu(X @ mlp.up.kernel[...] + mlp.up.bias[...])
    np.testing.assert_allclose(mlp(X), hidden @ mlp.down.kernel[...] + mlp.down.bias[...], rtol=1e-5, atol=1e-6)
    assert mlp.gate is None
    assert sorted(nnx.to_pure_dict(nnx.state(mlp))) == ["down", "up"]


def test_what_is_edited_is_what_goes_on():
    mlp = nnx.MLP(4, 6, use_bias=False, rngs=nnx.Rngs(0))
    np.testing.assert_array_equal(sonde.edit(mlp, {"hidden": jnp.zeros_like})(X), jnp.zeros((2, 4)))


def test_dtypes():
    mlp = nnx.MLP(4, 6, dtype=jnp.bfloat16, param_dtype=jnp.float16, rngs=nnx.Rngs(0))
    assert mlp(X).dtype == jnp.bfloat16
    assert {x.dtype for x in jax.tree.leaves(nnx.state(mlp))} == {jnp.dtype(jnp.float16)}
