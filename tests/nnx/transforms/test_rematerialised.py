"""Values that are computed again in the backward pass."""

import jax.numpy as jnp

from sonde import nnx


def test_remat_recomputes():
    model = nnx.Dict(w=nnx.Param(jnp.array(0.5)))
    plain = nnx.make_jaxpr(lambda m: nnx.grad(lambda m: jnp.sin(jnp.sin(m.w[...])))(m).w[...])(model)
    again = nnx.make_jaxpr(lambda m: nnx.grad(nnx.remat(lambda m: jnp.sin(jnp.sin(m.w[...]))))(m).w[...])(model)
    assert str(again).count("sin ") > str(plain).count("sin ")
