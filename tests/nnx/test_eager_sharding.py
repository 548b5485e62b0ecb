"""Where the value of a new Variable is placed."""

import jax
import jax.numpy as jnp


def test_sharding(same):
    def use(nnx):
        v = nnx.Param(jnp.ones((4, 2)), out_sharding=("x", None), eager_sharding=False)
        w = nnx.Param(jnp.ones((4, 2)), sharding_names=("x", None), eager_sharding=False)
        return v.out_sharding, v.sharding_names, w.get_metadata("out_sharding"), v.eager_sharding

    same(use)
    same(lambda nnx: nnx.Param(jnp.ones((4, 2)), out_sharding=("x", None)))
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))

    def placed(nnx):
        with jax.set_mesh(mesh), nnx.logical_axis_rules([("rows", "x")]):
            v = nnx.Param(jnp.ones((4, 2)), out_sharding=("rows", None))
        w = nnx.Param(jnp.ones((4, 2)), out_sharding=("x", None), mesh=mesh)
        specs = nnx.get_partition_spec(nnx.State({"v": w, "w": nnx.Param(jnp.ones(2))}))
        return str(v[...].sharding.spec), str(w[...].sharding.spec), str(specs["v"].get_raw_value())

    same(placed)
