"""A state with Variables of several types, of either implementation."""

import jax.numpy as jnp


def make(nnx):
    return nnx.State(
        {
            "a": nnx.Param(jnp.ones(2), tag="head"),
            "b": {"c": nnx.BatchStat(jnp.zeros(1)), "d": nnx.Param(3)},
            "layers": {0: {"w": nnx.Param(1.0)}, 1: {"w": nnx.Cache(2.0)}, 10: jnp.ones(1)},
        }
    )
