"""Flags of `flax.config` that Linen respects."""

import sys

import flax.linen
import jax
import jax.numpy as jnp
import pytest

import flax
from sonde import linen as nn
from sonde.linen.flax_names.flags import frozen


@pytest.fixture
def setting():
    before = {}

    def set_flag(name, value):
        before.setdefault(name, getattr(flax.config, name))
        flax.config.update(name, value)

    yield set_flag
    for name, value in before.items():
        flax.config.update(name, value)


def test_variables_are_frozen_if_asked(setting):
    x = jnp.ones((1, 2))
    for wanted, kind in ((True, flax.core.FrozenDict), (False, dict)):
        setting("flax_return_frozendict", wanted)
        variables = nn.BatchNorm(use_running_average=False).init(jax.random.key(0), x)
        _, changed = nn.BatchNorm(use_running_average=False).apply(variables, x, mutable=["batch_stats"])
        assert type(variables) is kind and type(changed) is kind


def test_adopted_modules_keep_their_names_if_asked(setting):
    class Outer(nn.Module):
        inner: nn.Module

        def __call__(self, x):
            return self.inner(x)

    class Own(Outer):
        preserve_adopted_names = False

    def names(cls):
        return list(cls(nn.Dense(2, name="mine")).init(jax.random.key(0), jnp.ones((1, 2)))["params"])

    assert names(Outer) == ["inner"]
    setting("flax_preserve_adopted_names", True)
    assert names(Outer) == ["mine"] and names(Own) == ["inner"]


def test_names_of_modules_are_kept_apart_in_keys_if_asked(setting):
    def keys(linen):
        class Leaf(linen.Module):
            def __call__(self):
                return jax.random.key_data(self.make_rng("rng")).tolist()

        class Node(linen.Module):
            leaf: str

            @linen.compact
            def __call__(self):
                return Leaf(name=self.leaf)()

        class Model(linen.Module):
            @linen.compact
            def __call__(self):
                return Node("cd", name="ab")(), Node("d", name="abc")()

        return Model().apply({}, rngs={"rng": jax.random.key(3)})

    for wanted in (False, True):
        setting("flax_fix_rng_separator", wanted)
        one, two = keys(nn)
        assert (one == two) is not wanted and (one, two) == keys(flax.linen)


def test_without_flax_variables_are_frozen_as_sonde_does(monkeypatch):
    monkeypatch.delitem(sys.modules, "flax")
    assert type(frozen({"a": {"b": 1}})) is nn.FrozenDict
