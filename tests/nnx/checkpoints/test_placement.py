"""Arrays from a checkpoint replace the model's own."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from sonde import nnx
from sonde.nnx import checkpoints
from sonde.nnx.checkpoints.placement import like, sharding_of

FORMATS = pytest.mark.parametrize("name", ["directory", "file.safetensors"])


def divided():
    """A layer whose kernel is sharded over the current mesh."""
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
    """Arrays that are not committed to a device can be used with arrays of any device, after restoring as before."""
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


@pytest.mark.parametrize(
    "wanted",
    [np.zeros(2, np.int16), jnp.zeros(2, jnp.bfloat16), jnp.zeros(2)],
    ids=["numpy", "bfloat16", "float32"],
)
def test_an_array_takes_kind_and_dtype_of_the_model_s_own(wanted):
    found = like(np.array([1.0, 2.0]), wanted, path="w")
    assert isinstance(found, type(wanted))
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, [1, 2])


def test_numbers_stay_numbers():
    assert like(np.array(3.0), 5, path="n") == 3
    assert type(like(np.array(3.0), 5, path="n")) is int
    assert type(like(np.array(1), True, path="n")) is bool


def test_keys_are_made_of_the_numbers_inside():
    key = jax.random.key(7)
    for stored in (np.asarray(jax.random.key_data(key)), key):
        found = like(stored, jax.random.key(0), path="key")
        assert found.dtype == key.dtype
        assert found == key
    numbers = like(key, np.zeros(2, np.uint32), path="key")  # a model that holds the numbers
    np.testing.assert_array_equal(numbers, jax.random.key_data(key))


def test_where_an_array_must_be():
    device = jax.devices()[1]
    bound = jax.device_put(jnp.ones(2), device)
    assert sharding_of(bound) == bound.sharding
    assert sharding_of(jnp.ones(2)) is None  # wherever JAX puts new arrays
    assert sharding_of(np.ones(2)) is None
    assert like(np.ones(2), bound, path="w").devices() == {device}
    wanted = jax.ShapeDtypeStruct((2,), jnp.float32, sharding=SingleDeviceSharding(device))
    assert like(np.ones(2), wanted, path="w").devices() == {device}
