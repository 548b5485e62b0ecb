"""Where the arrays of a model are to live."""

from __future__ import annotations

import flax.nnx as fnnx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from sonde import nnx

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
