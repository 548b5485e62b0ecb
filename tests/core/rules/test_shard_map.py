"""What is seen per shard becomes a global array with an axis per mesh axis that it varies over."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from tests.core.comparing import equal, kinds

from sonde import capture, sow


def mesh_of_two() -> Any:
    return jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))


def test_shard_map_gives_a_sharded_global_array_for_what_varies():
    mesh, spec = mesh_of_two(), PartitionSpec("d")

    def per_shard(x, w):
        w = sow(w * 2, "same")
        return sow(x * w, "varies")

    f = jax.jit(jax.shard_map(per_shard, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec))
    xs = jnp.arange(4.0)
    for looked in (capture(f), jax.jit(capture(f)), capture(lambda *args: f(*args))):
        result, records = looked(xs, 3.0)
        equal(result, xs * 6)
        equal(records["varies"].value, (xs * 6).reshape(2, 2))
        assert kinds(records["varies"]) == [["mesh"]]
        assert records["varies"].axes[0][0].name == "d"
        assert len(records["varies"].value.sharding.device_set) == 2
        assert not records["varies"].value.is_fully_replicated
        equal(records["same"].value, 6.0)
        assert kinds(records["same"]) == [[]]


def test_shard_map_gradients():
    mesh, spec = mesh_of_two(), PartitionSpec("d")

    def per_shard(x, w):
        return lax.psum(jnp.sum(sow(x * sow(w * 2, "w"), "h") ** 2), "d")

    f = jax.shard_map(per_shard, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=PartitionSpec())
    xs = jnp.arange(4.0)
    gradient, records = capture(jax.jit(jax.grad(f, argnums=1)), grads=True)(xs, 3.0)
    equal(gradient, 2 * 2 * 6 * jnp.sum(xs**2))
    equal(records["h"].grad, (2 * 6 * xs).reshape(2, 2))
    equal(records["w"].grad, 2 * 6 * jnp.sum(xs**2))


def test_values_and_gradients_with_a_sum_that_is_not_done_yet():
    """The gradient of a value of type `reduced` is `unreduced`: every shard has its part of a sum."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))

    def per_shard(x, w):
        return lax.psum(sow(sow(x, "x") * sow(w, "w"), "h"), "d")

    with jax.set_mesh(mesh):
        xs = jax.device_put(jnp.arange(4.0), PartitionSpec("d"))
        w = jax.device_put(jnp.arange(2.0) + 1, PartitionSpec(None, reduced={"d"}))
        plain = jax.shard_map(per_shard, out_specs=PartitionSpec())
        for f in (plain, jax.jit(plain)):
            step = jax.grad(lambda *args, f=f: f(*args).sum(), argnums=(0, 1))
            for looked in (capture(step, grads=True), jax.jit(capture(step, grads=True))):
                (_, gradient), records = looked(xs, w)
                equal(records["h"].value, jnp.asarray([[0.0, 2.0], [2.0, 6.0]]))
                equal(records["h"].grad, jnp.ones((2, 2)))
                equal(records["x"].grad, jnp.asarray([[1.0, 2.0], [1.0, 2.0]]))
                equal(records["w"].value, w)
                assert records["w"].grad.sharding == gradient.sharding
                assert gradient.sharding.spec.unreduced == {"d"}
                equal(jax.reshard(records["w"].grad, PartitionSpec()), jnp.asarray([2.0, 4.0]))


def test_gradients_in_a_shard_map_in_another():
    mesh = jax.make_mesh((2, 1), ("d", "e"), axis_types=(AxisType.Auto,) * 2)
    rows, columns = PartitionSpec("d", None), PartitionSpec(None, "e")

    def outer(x):
        return jax.shard_map(lambda x: sow(x**2, "h") * 3, in_specs=columns, out_specs=columns)(x)

    @jax.jit
    def f(x):
        return jax.shard_map(outer, in_specs=rows, out_specs=rows, check_vma=False, axis_names={"d"})(x).sum()

    with jax.set_mesh(mesh):
        xs = jax.device_put(jnp.arange(4.0).reshape(2, 2), PartitionSpec("d", "e"))
        gradient, records = capture(jax.grad(f), grads=True)(xs)
    equal(gradient, 6 * xs)
    equal(records["h"].value.reshape(2, 2), xs**2)
    equal(records["h"].grad.reshape(2, 2), jnp.full((2, 2), 3.0))


def test_pmap():
    xs = jnp.arange(4.0).reshape(2, 2)
    result, records = capture(jax.pmap(lambda x: sow(x * 2, "h") + 1))(xs)
    equal(result, xs * 2 + 1)
    equal(records["h"].value, xs * 2)
    assert kinds(records["h"]) == [["mesh"]]
