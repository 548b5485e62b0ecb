"""Methods of a model that is given as (GraphDef, State)."""

import copy

import jax
import jax.numpy as jnp
import numpy as np

from sonde import nnx


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


def test_protocols_of_python_are_no_methods_of_the_model():
    caller = nnx.call(nnx.split(nnx.Dict(a=nnx.Linear(2, 3, rngs=nnx.Rngs(0)))))
    copied = copy.copy(caller.a)
    assert type(copied) is type(caller)
    np.testing.assert_array_equal(copied(jnp.ones(2))[0], caller.a(jnp.ones(2))[0])
    assert not hasattr(caller, "__array__") and not hasattr(caller, "__jax_array__")
