"""`bridge.Module`: the variables and numbers of Flax's."""

from __future__ import annotations

import flax.linen
import flax.nnx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sonde.linen
import sonde.nnx
from sonde.errors import ScopeParamNotFoundError

X = jnp.linspace(-1, 1, 8).reshape(2, 4)


def compared(use):
    results = [jax.tree.map(np.asarray, use(nnx, linen)) for nnx, linen in PAIRS]
    jax.tree.map(np.testing.assert_array_equal, *results)
    return results[1]


PAIRS = [(flax.nnx, flax.linen), (sonde.nnx, sonde.linen)]


def dense(nnx):
    class Dense(nnx.bridge.Module):
        features: int

        @nnx.bridge.compact
        def __call__(self, x):
            kernel = self.param("kernel", nnx.initializers.lecun_normal(), (x.shape[-1], self.features))
            return x @ kernel + self.param("bias", nnx.initializers.zeros_init(), (self.features,))

    return Dense


def test_compact():
    def use(nnx, linen):
        Dense = dense(nnx)

        class Model(nnx.bridge.Module):
            @nnx.bridge.compact
            def __call__(self, x):
                x = Dense(3)(x)
                self.last = Dense(2)
                return self.last(Dense(3, name="middle")(x))

        variables = Model().init(0, X)
        assert sorted(variables["params"]) == ["Dense_0", "Dense_1", "middle"]
        grads = jax.grad(lambda p: Model().apply({"params": p}, X).sum())(variables["params"])
        return variables, Model().apply(variables, X), Model().init({"params": 0}, X), grads

    compared(use)


def test_setup_with_lists_and_shared_modules():
    def use(nnx, linen):
        Dense = dense(nnx)

        class Model(nnx.bridge.Module):
            def setup(self):
                self.first = Dense(4)
                self.layers = [Dense(4), Dense(4)]
                self.set_attr_priority("first", nnx.bridge.AttrPriority.HIGH)
                self.again = self.first

            def __call__(self, x):
                for layer in (self.first, *self.layers, self.again):
                    x = layer(x)
                return x

        variables = Model().init(jax.random.key(0), X)
        assert sorted(variables["params"]) == ["first", "layers"]
        return variables, Model().apply(variables, X)

    compared(use)


def test_collections_that_change():
    def use(nnx, linen):
        class Counter(nnx.bridge.Module):
            @nnx.bridge.compact
            def __call__(self):
                count = self.variable("counts", "n", lambda: jnp.zeros((), jnp.int32))
                count[...] += 1
                return count[...]

        variables = Counter().init({})
        return variables, Counter().apply(variables, mutable=["counts"]), Counter().apply(variables)

    compared(use)


def test_modules_of_other_kinds_inside():
    def use(nnx, linen):
        class Layer(nnx.Module):
            def __init__(self, rngs):
                self.linear = nnx.Linear(4, 4, rngs=rngs)
                self.drop = nnx.Dropout(0.5, rngs=rngs)

            def __call__(self, x):
                return self.drop(self.linear(x))

        class Block(linen.Module):
            @linen.compact
            def __call__(self, x):
                self.sow("intermediates", "h", x)
                return linen.Dropout(0.5, deterministic=False)(linen.Dense(4)(x))

        class Model(nnx.bridge.Module):
            @nnx.bridge.compact
            def __call__(self, x):
                x = nnx.bridge.nnx_in_bridge_mdl(lambda rngs: Layer(rngs))(x)
                return nnx.bridge.linen_in_bridge_mdl(Block(), name="block")(x)

        variables = Model().init(0, X)
        assert sorted(variables["params"]) == ["Layer_0", "block"]
        y, changed = Model().apply(variables, X, rngs=3, mutable=["intermediates"])
        return variables, y, changed["intermediates"]

    compared(use)


def test_lifted_transforms():
    def use(nnx, linen):
        Dense = dense(nnx)

        class Stack(nnx.bridge.Module):
            def setup(self):
                @nnx.compat.split_rngs(splits=2)
                @nnx.compat.vmap(in_axes=(nnx.StateAxes({nnx.RngState: 0, ...: None}),), axis_size=2)
                def make(parent):
                    parent.block = Dense(4)

                make(self)

            def __call__(self, x):
                @nnx.compat.split_rngs(splits=2)
                @nnx.compat.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
                def forward(block, x):
                    return block(x)

                return forward(self.block, x)

        variables = Stack().init(jax.random.key(0), X)
        assert variables["params"]["block"]["kernel"].shape == (2, 4, 4)
        return variables, Stack().apply(variables, X)

    compared(use)


def test_what_runs_is_known():
    nnx = sonde.nnx

    class Inner(nnx.bridge.Module):
        def __call__(self):
            return self.scope

    class Outer(nnx.bridge.Module):
        @nnx.bridge.compact
        def __call__(self):
            assert nnx.bridge.current_module() is self and nnx.bridge.current_context().in_compact
            return Inner().scope, Inner(parent=None).scope

    bound, unbound = Outer().apply({}, rngs=1)
    assert bound.rngs.default.key[...] == jax.random.key(1) and unbound is None
    assert nnx.bridge.current_module() is None and Outer().scope is None


def test_errors():
    Dense = dense(sonde.nnx)
    with pytest.raises(ValueError, match="Dense cannot make parameters outside a run"):
        Dense(3)(X)
    with pytest.raises(ScopeParamNotFoundError, match="needs 'kernel' of the collection 'params'"):
        Dense(3).apply({}, X, rngs=0)
    with pytest.raises(ValueError, match="outside a running bridge.Module"):
        sonde.nnx.bridge.nnx_in_bridge_mdl(lambda rngs: None)
