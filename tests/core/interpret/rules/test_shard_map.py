"""What is seen per shard becomes a global array with an axis per mesh axis that it varies over."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec
from tests.core.comparing import equal, kinds

from sonde import capture, report, sow


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


@pytest.mark.every(3)
@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_reduced_gradients_of_sites_that_none_reaches_have_the_axes_of_their_values(
    kind: AxisType, checked: bool, loop: bool
) -> None:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(kind,))

    def step(x: Any, w: Any) -> Any:
        h = sow(x * w, "h")
        sow(h * 7, "unused")  # differentiated, and no gradient reaches it
        sow(w * 7, "unused and the same everywhere")
        return jnp.sin(h)

    def body(w: Any, x: Any) -> Any:
        return lax.scan(lambda c, _: (step(c, w), None), x, length=3)[0] if loop else step(x, w)

    def loss(w: Any, x: Any) -> Any:
        specs = PartitionSpec(), PartitionSpec("d")
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("d"), check_vma=checked)(
            w, x
        ).sum()

    with jax.set_mesh(mesh):
        # As many rows in a shard as devices: an axis may be taken for the other one.
        args = jnp.ones(2), jax.device_put(jnp.ones((4, 2)), jax.NamedSharding(mesh, PartitionSpec("d", None)))
        for f in (jax.grad(loss, (0, 1)), jax.jit(jax.grad(loss, (0, 1)))):
            plain = capture(f, grads=True)(*args)[1]
            reduced = capture(f, grads=True, reduce=lambda v: {"sum": v.sum(), "shape": jnp.asarray(v.shape)})(*args)[1]
            for path, record in reduced.items():
                lead = plain[path].value.ndim - (2 if path in ("h", "unused") else 1)
                axes = plain[path].value.shape[:lead]
                own = plain[path].value.shape[lead:]
                for tree, whole in ((record.value, plain[path].value), (record.grad, plain[path].grad)):
                    assert tree["sum"].shape == axes
                    assert tree["shape"].shape == (*axes, len(own))
                    assert (np.asarray(tree["shape"]) == own).all()
                    np.testing.assert_allclose(tree["sum"], whole.sum(tuple(range(lead, whole.ndim))), rtol=1e-5)


@pytest.mark.parametrize("checked", [False, True])
def test_examining_gradients_on_a_mesh(checked: bool) -> None:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))

    def loss(w: Any, x: Any) -> Any:
        def body(w: Any, x: Any) -> Any:
            sow(w * 7, "unused")
            return sow(x * w, "h") * sow(w * 3, "b")

        specs = PartitionSpec(), PartitionSpec("d")
        out = PartitionSpec("d")
        return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out, check_vma=checked)(w, x).sum()

    page = report.examine(jax.grad(loss), grads=True)(jnp.ones(2), jnp.ones((4, 2)))
    assert {"h", "b", "unused"} <= {examined.path for examined in page.sites}
