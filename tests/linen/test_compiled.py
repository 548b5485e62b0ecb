"""`nn.jit`: how often it traces, what it keeps alive, and what its cache may share."""

import copy
import dataclasses
import gc
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.linen.against_flax import check

import sonde
from sonde import linen as nn
from sonde.flax import serialization, struct

X = jnp.arange(4.0) / 3
KEY = jax.random.key(0)


@dataclasses.dataclass
class Config:
    """A field that cannot be hashed and may change."""

    width: int


class Counted(nn.Module):
    option: Any = None

    @nn.jit
    @nn.compact
    def __call__(self, x):
        TRACES.append(self.name)
        self.sow("intermediates", "h", x)
        return nn.Dense(4)(x)


TRACES: list[Any] = []


@pytest.fixture(autouse=True)
def _no_traces_yet():
    TRACES.clear()


class Tower(nn.Module):
    option: Any = None

    @nn.compact
    def __call__(self, x):
        for i in range(4):
            x = Counted(self.option, name=f"block{i}")(x)
        return x


def test_equal_modules_under_different_names_are_traced_once():
    variables = Tower().init(KEY, X)
    assert len(TRACES) == 1
    for _ in range(2):
        Tower().apply(variables, X)
    assert len(TRACES) == 2


def test_values_sown_by_a_shared_trace_arrive_under_their_own_paths():
    variables = Tower().init(KEY, X)
    y, changed = Tower().apply(variables, X, mutable="intermediates")
    assert sorted(changed["intermediates"]) == [f"block{i}" for i in range(4)]
    x = X
    for i in range(4):
        np.testing.assert_array_equal(changed["intermediates"][f"block{i}"]["h"][0], x)
        p = variables["params"][f"block{i}"]["Dense_0"]
        x = x @ p["kernel"] + p["bias"]
    np.testing.assert_allclose(y, x, rtol=1e-6)
    _, records = sonde.capture(lambda: Tower().apply(variables, X))()
    assert sorted(records) == [f"block{i}/h" for i in range(4)]
    np.testing.assert_array_equal(records["block2/h"].value, changed["intermediates"]["block2"]["h"][0])


def test_values_sown_past_the_transform_arrive_under_their_own_paths():
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.sow("intermediates", "h", x)
            return nn.Dense(4)(x)

    Narrow = nn.jit(Block, variables="params")

    class Pair(nn.Module):
        @nn.compact
        def __call__(self, x):
            return Narrow(name="b")(Narrow(name="a")(x))

    variables = Pair().init(KEY, X)
    _, changed = Pair().apply(variables, X, mutable="intermediates")
    np.testing.assert_array_equal(changed["intermediates"]["a"]["h"][0], X)
    assert not np.array_equal(changed["intermediates"]["b"]["h"][0], X)


@pytest.mark.parametrize(
    "option", [[1, {"a": 2}], {1, 2}, np.arange(3.0), jnp.arange(3.0), Config(3), {"x": Config(1)}], ids=repr
)
def test_a_field_that_cannot_be_hashed_does_not_trace_again(option):
    module = Counted(option)
    variables = module.init(KEY, X)
    TRACES.clear()
    for _ in range(3):
        module.apply(variables, X)
    assert len(TRACES) == 1


class Node:
    """A type that only serialization can look into."""

    def __init__(self, width):
        self.width = width

    def __hash__(self):
        raise AssertionError("hashed")

    def __eq__(self, other):
        raise AssertionError("compared")


serialization.register_serialization_state(Node, lambda node: {"width": node.width}, lambda node, state: Node(**state))


@struct.dataclass
class Scaling:
    by: Any
    kind: str = struct.field(pytree_node=False)


def test_fields_are_compared_by_what_is_in_them():
    class Scaled(nn.Module):
        how: Any

        @nn.jit
        @nn.compact
        def __call__(self, x):
            TRACES.append(self.name)
            if isinstance(self.how, Node):
                return x * self.how.width
            if isinstance(self.how, Scaling):
                return x * self.how.by[0] if self.how.kind == "times" else x + self.how.by[0]
            return self.how(x)

    two = np.array([2.0])
    twice, thrice = jax.tree_util.Partial(lambda by, x: x * by, two), jax.tree_util.Partial(lambda by, x: x - by, two)
    fields = [Node(2), Node(3), Scaling(two, "times"), Scaling(two, "plus"), twice, thrice]
    for _ in range(2):
        got = [float(np.sum(Scaled(copy.copy(field)).apply({}, 5.0))) for field in fields]
        assert got == [10, 15, 10, 7, 10, 3]
    assert len(TRACES) == len(fields)


@pytest.mark.parametrize("change", ["config", "array"])
def test_a_field_that_has_changed_traces_again(change):
    class Scaled(nn.Module):
        by: Any

        @nn.jit
        @nn.compact
        def __call__(self, x):
            return x * (self.by.width if change == "config" else self.by[0])

    by: Any = Config(2) if change == "config" else np.array([2.0])
    module = Scaled(by)
    assert float(module.apply({}, 1.0)) == 2.0
    if change == "config":
        by.width = 5
    else:
        by[0] = 5.0
    assert float(module.apply({}, 1.0)) == 5.0


def test_nothing_of_a_call_is_kept_alive():
    module = Tower()
    variables = module.init(KEY, X)
    leaf = weakref.ref(variables["params"]["block0"]["Dense_0"]["kernel"])
    module.apply(variables, X)
    del variables
    gc.collect()
    assert leaf() is None


def test_no_tracer_leaks():
    def loss(variables, x):
        return Tower().apply(variables, x).sum()

    with jax.checking_leaks():
        variables = Tower().init(KEY, X)
        jax.jit(jax.grad(loss))(variables, X)
        jax.vmap(loss, (None, 0))(variables, jnp.ones((2, 4)))


def test_a_jitted_class_made_anew_each_time_is_forgotten():
    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(x)

    made = []
    for _ in range(3):
        jitted = nn.jit(Plain)
        jitted().init(KEY, X)
        made.append(weakref.ref(jitted))
    del jitted
    gc.collect()
    assert [ref() for ref in made] == [None] * 3


def test_a_variable_given_as_a_field_may_change_inside():
    def build(nn):
        class Adds(nn.Module):
            total: Any

            @nn.jit
            @nn.compact
            def __call__(self, x):
                self.total.value += x
                return x

        class Model(nn.Module):
            @nn.compact
            def __call__(self, x):
                return Adds(self.variable("count", "total", jnp.zeros, x.shape))(x)

        return Model()

    check(build, X)


def test_a_method_of_a_module_without_variables():
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(x)

        @nn.jit
        def init_with_output(self, rngs, *args, **kwargs):
            return super().init_with_output(rngs, *args, **kwargs)

    y, variables = Model().init_with_output(KEY, X)
    np.testing.assert_allclose(y, nn.Dense(2).apply({"params": variables["params"]["Dense_0"]}, X), rtol=1e-6)


def test_values_are_freed_without_the_garbage_collector(monkeypatch):
    class Layers(nn.Module):
        def setup(self):
            self.first = nn.Dense(4)
            self.rest = [nn.Dense(4), nn.LayerNorm()]

        @nn.compact
        def __call__(self, x):
            for layer in (self.first, *self.rest):
                x = layer(x)
            return nn.remat(nn.Dense)(4)(nn.Sequential([nn.Dense(4)])(x))

    @jax.jit
    def run(key, x):
        return Layers().apply(Layers().init(key, x), x)

    monkeypatch.setattr(gc, "collect", lambda *_: 0)
    with jax.checking_leaks():
        jax.vmap(run, (0, None))(jax.random.split(KEY, 3), X)


def test_a_module_that_is_called_again_goes_on_counting_keys():
    def build(nn):
        class Noise(nn.Module):
            below: bool

            @nn.compact
            def __call__(self, x):
                if self.below:
                    return nn.Dropout(0.5, deterministic=False)(x)
                return x + jax.random.normal(self.make_rng("dropout"), x.shape)

        class Top(nn.Module):
            @nn.compact
            def __call__(self, x):
                layers = [nn.jit(Noise)(below) for below in (False, True)]
                return [layer(x) for layer in layers for _ in range(3)]

        return Top()

    check(build, jnp.ones(8))
