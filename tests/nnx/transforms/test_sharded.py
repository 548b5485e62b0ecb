"""Functions over shards of Variables and Modules."""

import jax
import jax.numpy as jnp
import numpy as np
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
