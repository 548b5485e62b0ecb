"""Arrays from a checkpoint take the place of the model's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from sonde import nnx
from sonde.nnx import checkpoints

FORMATS = pytest.mark.parametrize("name", ["directory", "file.safetensors"])


def divided():
    """A layer whose kernel is divided over the mesh around."""
    init = nnx.with_partitioning(nnx.initializers.normal(), (None, "model"))
    return nnx.Linear(4, 6, kernel_init=init, rngs=nnx.Rngs(0))


def sharded(mesh):
    with jax.set_mesh(mesh):
        return divided()


@pytest.fixture
def mesh():
    return jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,))


@FORMATS
def test_sharding_is_kept(tmp_path, name, mesh):
    saved, fresh = sharded(mesh), sharded(mesh)
    checkpoints.save(tmp_path / name, saved)
    fresh.kernel[...] = jnp.zeros_like(fresh.kernel[...])
    checkpoints.restore(tmp_path / name, fresh)
    assert fresh.kernel[...].sharding == NamedSharding(mesh, P(None, "model"))
    assert np.array_equal(fresh.kernel[...], saved.kernel[...])
    assert fresh.kernel.get_metadata() == saved.kernel.get_metadata()


@FORMATS
def test_on_another_number_of_devices(tmp_path, name, mesh):
    saved = sharded(mesh)
    checkpoints.save(tmp_path / name, saved)
    second = SingleDeviceSharding(jax.devices()[1])
    state = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=second), nnx.state(saved))
    checkpoints.restore(tmp_path / name, state)
    assert state["kernel"].get_raw_value().sharding == second
    assert np.array_equal(state["kernel"].get_raw_value(), saved.kernel[...])


@FORMATS
def test_unplaced_arrays_stay_unplaced(tmp_path, name):
    """Arrays that belong to no device can be used with arrays of any device, after restoring as before."""
    model = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    node = nnx.Dict(linear=nnx.Linear(2, 3, rngs=nnx.Rngs(0)), drop=model)
    checkpoints.save(tmp_path / name, node)
    checkpoints.restore(tmp_path / name, node)
    assert not any(x.committed for x in jax.tree.leaves(nnx.state(node)))
    assert node.linear(jax.device_put(jnp.ones(2), jax.devices()[1])).device == jax.devices()[1]


def test_keys_of_another_generator(tmp_path):
    def make(impl):
        return nnx.Dict(a=nnx.RngKey(jax.random.key(0, impl=impl)))

    checkpoints.save(tmp_path / "directory", make("rbg"))
    with pytest.raises(ValueError, match=r"a: the checkpoint has \(4,\), the model \(2,\)"):
        checkpoints.restore(tmp_path / "directory", make("threefry2x32"))
    with pytest.raises(ValueError, match=r"a/value holds keys of the random generator rbg .* of unsafe_rbg in the mod"):
        checkpoints.restore(tmp_path / "directory", make("unsafe_rbg"))
