"""Methods of a model that is given as (GraphDef, State)."""

import jax
import jax.numpy as jnp


def test_call(same):
    def use(nnx):
        class Counter(nnx.Module):
            def __init__(self):
                self.n = nnx.Variable(jnp.array(0))

            def __call__(self, x):
                self.n[...] += x
                return self.n + 0

        pure = nnx.split(Counter())
        for _ in range(2):
            out, pure = jax.jit(lambda p: nnx.call(p)(2))(pure)
        nested = nnx.split(nnx.Dict(a=Counter()))
        return out, nnx.merge(*pure).n, nnx.call(nested).a(5)[0], nnx.call(nnx.split(nnx.Dict(a=Counter())))["a"](1)[0]

    same(use)
