"""Functions over shards of Variables and Modules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from sonde import nnx


def mesh():
    return jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def test_shard_map_updates():
    m = nnx.Dict(w=nnx.Param(jnp.arange(4.0)), n=nnx.Variable(jnp.array(0)))

    def f(m, x):
        m.w[...] += 1
        m.n[...] += 1
        return jax.lax.psum(m.w[...].sum() * x, "d")

    specs = (nnx.StateSharding({nnx.Param: P("d"), ...: P()}), None)
    out = nnx.shard_map(f, mesh=mesh(), in_specs=specs, out_specs=P())(m, 2.0)
    assert (float(out), int(m.n)) == (20.0, 1)
    np.testing.assert_array_equal(m.w[...], [1, 2, 3, 4])


def test_shard_map():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    m = nnx.Dict(w=nnx.Param(jnp.arange(4.0)))
    f = nnx.shard_map(
        lambda m: setattr(m, "twice", nnx.Param(m.w * 2)), mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P()
    )
    f(m)
    np.testing.assert_array_equal(m.twice[...], [0, 2, 4, 6])
    assert m.twice[...].sharding.spec == jax.P("d")


def test_shards_are_what_jax_gives():
    """Each device has its part of sharded values, and all of the others."""
    seen = []

    def f(m, x):
        seen.append((m.w.shape, m.b.shape, x.shape))
        return m.w * x + m.b.sum()

    m = nnx.Dict(w=nnx.Param(jnp.arange(4.0)), b=nnx.BatchStat(jnp.ones(3)))
    specs = (nnx.StateSharding({nnx.Param: P("d"), ...: None}), P("d"))
    x = jnp.arange(4.0) + 1
    out = nnx.shard_map(f, mesh=mesh(), in_specs=specs, out_specs=P("d"))(m, x)
    plain = jax.shard_map(
        lambda w, b, x: w * x + b.sum(), mesh=mesh(), in_specs=(P("d"), P(), P("d")), out_specs=P("d")
    )
    np.testing.assert_array_equal(out, plain(m.w[...], jnp.ones(3), x))
    assert set(seen) == {((2,), (3,), (2,))}


def test_specs_that_do_not_fit():
    with pytest.raises(ValueError, match="The in_specs of nnx.shard_map"):
        nnx.shard_map(lambda x: x, mesh=mesh(), in_specs=(P(), P()), out_specs=P())(jnp.ones(2))


@pytest.mark.parametrize("option", ["in_specs", "out_specs"])
@pytest.mark.parametrize("mode", [{"graph": False}, {"graph_updates": False}])
def test_filters_need_graph_updates(option, mode):
    specs = {"in_specs": (P(),), "out_specs": P(), option: (nnx.StateSharding({...: P()}),)}
    with pytest.raises(ValueError, match=f"nnx.shard_map: `{option}` cannot contain `StateSharding` objects"):
        nnx.shard_map(lambda x: x, mesh=mesh(), **specs, **mode)
