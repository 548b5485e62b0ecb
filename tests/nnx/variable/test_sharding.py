"""Partition specs and shardings of a model."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from sonde import nnx
from sonde.nnx.variable.sharding import add_axis, remove_axis, spec_of

BOTH = pytest.mark.parametrize("where", [nnx, fnnx], ids=["sonde", "flax"])


def mesh(kind: AxisType):
    return jax.make_mesh((2,), ("model",), axis_types=(kind,))


@BOTH
def test_specs_and_shardings_of_a_model(where):
    devices = mesh(AxisType.Auto)
    with jax.set_mesh(devices):
        state = where.state(where.Linear(4, 8, kernel_metadata={"out_sharding": (None, "model")}, rngs=where.Rngs(0)))
        assert where.get_partition_spec(state)["kernel"].get_value() == P(None, "model")
        expected = NamedSharding(devices, P(None, "model"))
        assert where.get_named_sharding(state, devices)["kernel"].get_value() == expected


@BOTH
def test_explicit_sharding_of_results(where):
    with jax.set_mesh(mesh(AxisType.Explicit)):
        rngs = where.Rngs(0)
        x = jax.device_put(jnp.ones((4, 6, 4)), P("model", None, None))
        wanted = P("model", None, None)
        layers = [
            where.Linear(4, 8, rngs=rngs),
            where.LinearGeneral(4, 8, rngs=rngs),
            where.Einsum("ntd,dk->ntk", (4, 8), (8,), rngs=rngs),
            where.MultiHeadAttention(2, 4, decode=False, rngs=rngs),
        ]
        for layer in layers:
            assert jax.typeof(layer(x, out_sharding=wanted)).sharding.spec == wanted
        embed = where.Embed(16, 4, rngs=rngs)
        indices = jax.device_put(jnp.ones(4, jnp.int32), P("model"))
        assert jax.typeof(embed(indices, out_sharding=P("model", None))).sharding.spec == P("model", None)
        logits = embed.attend(x, out_sharding=wanted)
        assert jax.typeof(logits).sharding.spec == wanted
        assert jax.typeof(where.LayerNorm(4, rngs=rngs)(x)).sharding.spec == wanted


def named(*names, **metadata):
    return nnx.Param(jnp.zeros([2] * len(names)), out_sharding=names, eager_sharding=False, **metadata)


@pytest.mark.parametrize("index", [0, 1, 2, -1])
def test_an_axis_that_is_added_is_taken_out_again(index):
    v = named("x", "y")
    add_axis(v, index, {nnx.PARTITION_NAME: "new"})
    expected = ["x", "y"]
    expected.insert(index if index >= 0 else 2, "new")
    assert v.out_sharding == tuple(expected)
    remove_axis(v, index, {nnx.PARTITION_NAME: "new"})
    assert v.out_sharding == ("x", "y")


def test_hooks_run_and_specs_stay_specs():
    seen = []
    v = named("x", on_add_axis=lambda variable, index, name: seen.append((index, name)))
    add_axis(v, 0, {nnx.PARTITION_NAME: "new"})
    assert seen == [(0, "new")]
    spec = nnx.Param(jnp.zeros(2), out_sharding=P("x"), eager_sharding=False)
    add_axis({"deep": [spec]}, 1, {nnx.PARTITION_NAME: "new"})
    assert spec.out_sharding == P("x", "new")
    bare = nnx.Param(jnp.zeros(2))
    add_axis(bare, 0, {nnx.PARTITION_NAME: "new"})  # nothing is named, and nothing becomes named
    assert not bare.has_metadata("out_sharding")


def test_specs_of_variables():
    assert spec_of(nnx.Param(1.0)) == P()
    assert spec_of(named("rows", None, sharding_rules=[("rows", "x")])) == P("x", None)
    tree = nnx.get_partition_spec({"v": named("x", "y"), "bare": jnp.ones(2), "n": 3})
    assert (tree["v"].get_raw_value(), tree["bare"], tree["n"]) == (P("x", "y"), P(), 3)


def test_a_model_that_is_only_described():
    devices = mesh(AxisType.Auto)

    def make():
        return nnx.Dict(w=nnx.Param(jnp.zeros((4, 2)), out_sharding=("model", None)), b=nnx.Param(jnp.zeros(2)))

    graphdef, state = nnx.get_abstract_model(make, devices)
    assert state["w"].get_value() == jax.ShapeDtypeStruct(
        (4, 2), jnp.float32, sharding=NamedSharding(devices, P("model", None))
    )
    assert state["b"].get_value().sharding == NamedSharding(devices, P())
    assert type(nnx.merge(graphdef, state)) is nnx.Dict


def test_an_axis_of_another_name_is_not_taken_out():
    v = named("x", "y")
    with pytest.raises(ValueError, match=r"the axes \('x', 'y'\) is named 'x', but the transform calls it 'new'"):
        remove_axis(v, 0, {nnx.PARTITION_NAME: "new"})
    assert v.out_sharding == ("x", "y")


def test_an_abstract_model_says_its_shardings():
    devices = mesh(AxisType.Auto)
    shape = jax.ShapeDtypeStruct((4, 2), jnp.float32)
    model = nnx.Dict(
        w=nnx.Param(shape, out_sharding=("model", None), mesh=devices, eager_sharding=False),
        plain=nnx.Param(shape),
        bare=jnp.ones(3),
    )
    found = nnx.as_abstract(model)
    assert found.w.get_raw_value().sharding == NamedSharding(devices, P("model", None))
    assert found.plain.get_raw_value() == shape
    assert found.bare is model.bare
    assert model.w.get_raw_value() == shape
