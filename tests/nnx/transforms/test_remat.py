"""Values that are computed again in the backward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sonde import nnx


def test_remat_recomputes():
    model = nnx.Dict(w=nnx.Param(jnp.array(0.5)))
    plain = nnx.make_jaxpr(lambda m: nnx.grad(lambda m: jnp.sin(jnp.sin(m.w[...])))(m).w[...])(model)
    again = nnx.make_jaxpr(lambda m: nnx.grad(nnx.remat(lambda m: jnp.sin(jnp.sin(m.w[...]))))(m).w[...])(model)
    assert str(again).count("sin ") > str(plain).count("sin ")


def test_gradients_and_updates_are_those_without():
    def f(model, x):
        model.count[...] += 1
        return jnp.sin(model.w * x) * jnp.cos(model.w)

    found = []
    for transform in (lambda f: f, nnx.remat, nnx.checkpoint(policy=jax.checkpoint_policies.nothing_saveable)):
        model = nnx.Dict(w=nnx.Param(jnp.array(0.3)), count=nnx.Variable(jnp.array(0)))
        gradient = nnx.grad(transform(f))(model, 2.0)
        found.append((float(gradient["w"][...]), int(model.count[...])))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-6)
    assert found[0][1] == 1  # though it is computed twice


def test_a_policy_decides_what_is_kept():
    def loss(w):
        return jnp.sin(jnp.sin(w[...]))

    def sines(policy):
        return str(nnx.make_jaxpr(nnx.grad(nnx.remat(loss, policy=policy)))(nnx.Param(0.5))).count(" sin ")

    assert sines(jax.checkpoint_policies.everything_saveable) < sines(jax.checkpoint_policies.nothing_saveable)


def test_static_arguments():
    @nnx.remat(static_argnums=(1,))
    def f(w, n):
        return w[...] ** n if isinstance(n, int) else jnp.nan

    assert float(nnx.grad(lambda w: f(w, 3))(nnx.Param(2.0))) == 12.0
    with pytest.raises(ValueError, match="nnx.remat does not support bound methods"):
        nnx.remat(nnx.Sequential().__call__)
