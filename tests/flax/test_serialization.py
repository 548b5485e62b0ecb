"""`sonde.flax.serialization`, `struct`, `traverse_util` and `training` against Flax's, on the same trees."""

from __future__ import annotations

import flax.core
import flax.jax_utils
import flax.linen
import flax.serialization
import flax.struct
import flax.training.train_state
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sonde import linen
from sonde.flax import serialization, struct, training, traverse_util

TREE = {
    "int": 1,
    "float": 2.5,
    "text": "s",
    "yes": True,
    "none": None,
    "scalar": np.float32(3),
    "complex": 1 + 2j,
    "int8": np.ones((2,), np.int8),
    "bfloat16": jnp.ones((2, 1), jnp.bfloat16),
    "float8": jnp.ones(2, jnp.float8_e4m3fn),
    "zero_d": np.array(1.0),
    "bytes": b"q",
    "nested": [1, (2.0, {"a": jnp.arange(3)})],
    "optimizer": optax.adam(1e-3).init({"w": jnp.ones(2)}),
    "integer_key": {5: "five"},
}


def test_bytes_are_those_of_flax(monkeypatch):
    data = serialization.to_bytes(TREE)
    assert data == flax.serialization.to_bytes(TREE)
    restored, theirs = serialization.from_bytes(TREE, data), flax.serialization.from_bytes(TREE, data)
    assert jax.tree.structure(restored) == jax.tree.structure(theirs)
    for ours, flaxs in zip(jax.tree.leaves(restored), jax.tree.leaves(theirs)):
        assert type(ours) is type(flaxs) and np.array_equal(ours, flaxs)
    for package in (serialization, flax.serialization):
        monkeypatch.setattr(package, "MAX_CHUNK_SIZE", 16)
    big = {"a": np.arange(9.0).reshape(3, 3)}
    assert serialization.to_bytes(big) == flax.serialization.to_bytes(big)
    np.testing.assert_array_equal(serialization.from_bytes(None, flax.serialization.to_bytes(big))["a"], big["a"])


@pytest.mark.parametrize(
    ("target", "state", "message"),
    [
        ([1, 2], {"0": 5}, r"has 1 entries for a list of 2, at \."),
        ({"a": {"b": 1}}, {"a": {"c": 1}}, r"lacks the entries b, at \./a"),
        (optax.EmptyState(), {"x": 1}, r"fields that EmptyState lacks: x"),
        (optax.adam(1).init(jnp.ones(1))[0], {"mu": 1}, r"no field 'count' of ScaleByAdamState"),
    ],
)
def test_what_does_not_fit_is_named(target, state, message):
    with pytest.raises(ValueError, match=message):
        serialization.from_state_dict(target, state)


def test_what_cannot_be_written_is_named():
    with pytest.raises(TypeError, match="A object cannot be written as bytes"):
        serialization.to_bytes({"a": object()})
    with pytest.raises(ValueError, match="is registered already"):
        serialization.register_serialization_state(list, list, list)


def boxed_variables():
    init = linen.with_logical_partitioning(linen.initializers.lecun_normal(), ("in", "out"))
    bias = linen.with_partitioning(linen.initializers.ones, ("out",))
    return linen.Dense(3, kernel_init=init, bias_init=bias).init(jax.random.key(0), jnp.ones((1, 2)))


@pytest.mark.parametrize("package", [serialization, flax.serialization], ids=["sonde", "flax"])
def test_boxes_and_frozen_dicts_of_sonde(package):
    variables = linen.freeze(boxed_variables())
    state = package.to_state_dict(variables)
    assert state["params"]["kernel"]["value"].shape == (2, 3)
    restored = package.from_bytes(jax.tree.map(jnp.zeros_like, variables), package.to_bytes(variables))
    assert type(restored) is linen.FrozenDict
    assert type(restored["params"]["kernel"]) is linen.LogicallyPartitioned
    jax.tree.map(np.testing.assert_array_equal, restored, variables)


def point(package):
    class Point(package.PyTreeNode):
        x: int
        y: int = package.field(pytree_node=False, default=1)

        def total(self):
            return self.x + self.y

    @package.dataclass
    class Named:
        a: int
        b: int = package.field(default=2, metadata={"unit": "m"})

    return Point, Named


@pytest.mark.parametrize("package", [struct, flax.struct], ids=["sonde", "flax"])
def test_struct(package):
    Point, Named = point(package)
    assert repr(Point(1).replace(x=3)).endswith("Point(x=3, y=1)") and Point(1).total() == 2
    assert jax.tree.leaves(Point(7, y=2)) == [7] and jax.tree.map(lambda x: x + 1, Point(1, 5)) == Point(2, 5)
    assert hash(Point(1)) == hash(Point(1)) and package.dataclass(Named) is Named
    assert Named.__dataclass_fields__["b"].metadata["unit"] == "m"
    [(path, _)] = jax.tree_util.tree_flatten_with_path(Point(1))[0]
    assert jax.tree_util.keystr(path) == ".x"
    with pytest.raises(AttributeError):
        Point(1).x = 2
    assert serialization.from_state_dict(Named(0), {"a": 1, "b": 3}) == Named(1, 3)


def test_flax_can_write_dataclasses_of_sonde():
    Point, _ = point(struct)
    assert flax.serialization.from_bytes(Point(0), flax.serialization.to_bytes(Point(4))) == Point(4)


def test_paths_of_nested_dicts():
    nested = {"a": {"b": 1, "c": {}}, "d": {}, "e": {"f": {"g": 2}}}
    for options in ({}, {"keep_empty_nodes": True, "sep": "/"}, {"is_leaf": lambda path, _: path == ("e",)}):
        ours, theirs = traverse_util.flatten_dict(nested, **options), flax.traverse_util.flatten_dict(nested, **options)
        assert list(map(str, ours.items())) == list(map(str, theirs.items()))
    kept = traverse_util.flatten_dict(nested, keep_empty_nodes=True)
    assert traverse_util.unflatten_dict(kept) == nested
    name = lambda path, x: ("/".join(path), x)
    assert traverse_util.path_aware_map(name, nested) == flax.traverse_util.path_aware_map(name, nested)
    with pytest.raises(AssertionError):
        traverse_util.flatten_dict([1])


@pytest.mark.parametrize("make", [training.TrainState, flax.training.train_state.TrainState], ids=["sonde", "flax"])
def test_train_states_of_both_train_modules_of_sonde(make):
    class State(make):
        stats: dict

    model, x = linen.Dense(3), jnp.ones((1, 2))
    params = model.init(jax.random.key(0), x)["params"]
    state = State.create(apply_fn=model.apply, params=flax.core.freeze(params), tx=optax.adam(0.1), stats={"n": 0})
    step = jax.jit(
        lambda state: state.apply_gradients(
            grads=jax.grad(lambda p: (state.apply_fn({"params": p}, x) ** 2).sum())(state.params), stats={"n": 1}
        )
    )
    state = step(step(state))
    assert int(state.step) == 2 and int(state.stats["n"]) == 1
    reference = optax.adam(0.1)
    by_hand, opt_state = params, reference.init(params)
    for _ in range(2):
        grads = jax.grad(lambda p: ((x @ p["kernel"] + p["bias"]) ** 2).sum())(by_hand)
        updates, opt_state = reference.update(grads, opt_state, by_hand)
        by_hand = optax.apply_updates(by_hand, updates)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5)
    jax.tree.map(close, dict(state.params), by_hand)
    for package in (serialization, flax.serialization):
        restored = package.from_bytes(state, package.to_bytes(state))
        jax.tree.map(close, restored.params, state.params)


def test_values_that_are_replaced_by_their_gradients():
    def use(make):
        params = {"params": {"w": jnp.ones(2)}, "_overwrite_with_gradient": {"scale": jnp.ones(1)}}
        state = make.create(apply_fn=None, params=params, tx=optax.sgd(0.5))
        grads = {"params": {"w": jnp.ones(2)}, "_overwrite_with_gradient": {"scale": jnp.full(1, 7.0)}}
        return state.apply_gradients(grads=grads).params

    jax.tree.map(np.testing.assert_array_equal, use(training.TrainState), use(flax.training.train_state.TrainState))


def test_replicated_variables():
    variables = boxed_variables()
    copies = flax.jax_utils.replicate(variables, jax.devices()[:2])
    assert copies["params"]["kernel"].value.shape == (2, 2, 3)
    jax.tree.map(np.testing.assert_array_equal, flax.jax_utils.unreplicate(copies), variables)
