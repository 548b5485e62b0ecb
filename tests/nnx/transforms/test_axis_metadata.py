"""Names of axes in the metadata of Variables, kept right across transforms that map."""

import jax.numpy as jnp

from sonde import nnx


def test_named_axes():
    v = nnx.Param(jnp.ones((2, 3)), out_sharding=("layers", "x"), eager_sharding=False)

    def f(v):
        assert v.out_sharding == ("x",)
        return nnx.Param(v[...], out_sharding=("y",), eager_sharding=False)

    out = nnx.vmap(f, transform_metadata={nnx.PARTITION_NAME: "layers"})(v)
    assert out.out_sharding == ("layers", "y") and v.out_sharding == ("layers", "x")
