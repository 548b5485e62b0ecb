"""Packages that put functions around methods and make variables through `module.scope`, as qwix does, against Flax."""

import functools
import weakref

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde.linen
from sonde.errors import ModifyScopeVariableError

X = jnp.arange(6.0).reshape(2, 3) / 7


def models(nn):
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(jnp.sin(x))

    class WithSetup(nn.Module):
        def setup(self):
            self.blocks = [Block() for _ in range(2)]

        def __call__(self, x):
            return self.blocks[1](self.blocks[0](x))

    class Jitted(nn.Module):
        @nn.jit
        @nn.compact
        def __call__(self, x):
            return Block()(x)

    return {"compact": Block, "setup": WithSetup, "jit": Jitted, "remat": nn.remat(Block)}


def unwrapped(method):
    """The function that the class defines, and how many wrappers were around it."""
    n_wrappers = 0
    while hasattr(method, "method_handler_wrapped"):
        method, n_wrappers = method.__wrapped__, n_wrappers + 1
    return method, n_wrappers


def adapted(nn, cls):
    """A class whose `__call__` multiplies by a parameter, counts its calls and drops a statistic."""
    inner, n_wrappers = unwrapped(cls.__call__)
    assert n_wrappers

    @functools.wraps(inner)
    def method(self, x):
        assert nn.module._context.module_stack[-1] is self
        scope = self.scope
        weakref.ref(scope)
        assert not scope.invalid and scope.has_rng("params") == self.has_rng("params")
        gain = scope.param("gain", nn.initializers.normal(), (3,))
        count = scope.variable("stats", "count", lambda: jnp.zeros((), int))
        if scope.is_mutable_collection("stats") and scope.has_variable("stats", "old"):
            scope._mutable_collection("stats").pop("old")
        if count.is_mutable():
            count.value += 1
        assert scope.get_variable("params", "gain") is scope._collection("params")["gain"]
        assert not scope.root.is_collection_empty("params") and scope.is_collection_empty("nothing")
        return inner(self, x) * gain

    return type(cls.__name__, (cls,), {"__call__": nn.module.wrap_method_once(method)})


@pytest.mark.parametrize("name", ["compact", "setup", "jit", "remat"])
def test_a_function_put_around_a_method_runs(name):
    results = []
    for nn in (sonde.linen, flax.linen):
        model = adapted(nn, models(nn)[name])()
        variables = model.init(jax.random.key(0), X)
        stats = {**variables["stats"], "old": jnp.ones(2)}
        results.append((variables, model.apply({**variables, "stats": stats}, X, mutable="stats")))
    ours, theirs = results
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert set(ours[1][1]["stats"]) == {"count"} and "gain" in ours[0]["params"]


def test_a_collection_that_may_not_change():
    class Pops(sonde.linen.Module):
        def __call__(self):
            self.scope._mutable_collection("stats").clear()

    with pytest.raises(ModifyScopeVariableError, match=r"pass mutable=\['stats'\] to apply"):
        Pops().apply({"stats": {"a": 1}})


def test_variables_and_names_of_a_scope():
    class Reads(sonde.linen.Module):
        @sonde.linen.compact
        def __call__(self):
            self.param("w", lambda key: jnp.ones(2))
            scope = self.scope
            scope.put_variable("stats", "n", 3)
            assert scope.mutable == "stats" and scope.name_reserved("w", "params") and not scope.name_reserved("v")
            return scope.variables(), scope.mutable_variables()

    (everything, changing), _ = Reads().apply({"params": {"w": jnp.zeros(2)}}, mutable="stats")
    assert set(everything) == {"params", "stats"} and changing == {"stats": {"n": 3}}
