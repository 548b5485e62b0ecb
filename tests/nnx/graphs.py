"""Small models with and without shared references, made of either implementation's classes."""

import jax
import jax.numpy as jnp


def shared(nnx):
    class M(nnx.Module):
        def __init__(self):
            self.a = nnx.Param(jnp.ones(2))
            self.b = nnx.BatchStat(jnp.zeros(2))
            self.c = self.a
            self.arr = jnp.ones(3)
            self.sub = nnx.Dict(w=nnx.Param(3.0), n=1)
            self.same = self.sub

    return M()


def tree(nnx):
    return nnx.Dict(
        w=nnx.Param(jnp.ones(2), role="x"),
        layers=nnx.List([nnx.Dict(w=nnx.Param(float(i)), mean=nnx.BatchStat(0.0), n=i) for i in range(3)]),
        arr=jnp.ones(1),
        name="tree",
    )


def leaves(node):
    """The paths of the leaves that JAX sees, and the leaves."""
    return [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(node)], jax.tree.leaves(node)
