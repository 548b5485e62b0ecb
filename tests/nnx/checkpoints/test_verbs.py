"""Saving and restoring: both formats, every kind of value, abstract models, shardings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from tests.nnx.checkpoints.models import make, numbers, train

from sonde import nnx
from sonde.nnx import checkpoints

FORMATS = pytest.mark.parametrize("name", ["directory", "file.safetensors"])


@FORMATS
def test_model_and_optimizer(tmp_path, name):
    saved, fresh = (dict(zip(("model", "optimizer"), train(nnx, seed))) for seed in (0, 5))
    checkpoints.save(tmp_path / name, saved)
    assert numbers(nnx, fresh) != numbers(nnx, saved)
    assert checkpoints.restore(tmp_path / name, fresh) is fresh
    assert numbers(nnx, fresh) == numbers(nnx, saved)


def odd_values():
    return nnx.State(
        {
            "none": nnx.Param(None),
            "number": nnx.Param(5),
            "numpy": nnx.Param(np.arange(3)),
            "tree": nnx.Param({"x": (jnp.ones(2), 2.5)}),
            "keys": nnx.RngKey(jax.random.split(jax.random.key(3, impl="rbg"))),
            "old_key": nnx.RngKey(jax.random.PRNGKey(0)),
            "flag": nnx.Param(jnp.array(True)),
            "half": nnx.Param(jnp.full((2, 2), 1.5, jnp.bfloat16)),
            "complex": nnx.Param(jnp.full((2,), 1 + 2j)),
        }
    )


@FORMATS
def test_odd_values(tmp_path, name):
    saved = odd_values()
    checkpoints.save(tmp_path / name, saved)
    fresh = jax.tree.map(lambda x: x[::-1] if getattr(x, "ndim", 0) else type(x)(0) if x is True else x, odd_values())
    fresh["number"].set_value(0)
    checkpoints.restore(tmp_path / name, fresh)
    for a, b in zip(jax.tree.leaves(saved), jax.tree.leaves(fresh), strict=True):
        assert type(a) is type(b) and getattr(a, "dtype", None) == getattr(b, "dtype", None)
        if jax.dtypes.issubdtype(getattr(a, "dtype", "float32"), jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.array_equal(a, b)
    assert fresh["none"].get_value() is None


@FORMATS
def test_only_some(tmp_path, name):
    (saved, _), (fresh, _) = train(nnx, 0), train(nnx, 5)
    checkpoints.save(tmp_path / name, saved)
    before = numbers(nnx, fresh)
    checkpoints.restore(tmp_path / name, fresh, only=nnx.Param)
    chosen = {tuple(map(str, path)) for path, _ in nnx.to_flat_state(nnx.state(fresh, nnx.Param))}
    expected = numbers(nnx, saved)
    assert numbers(nnx, fresh) == {path: expected[path] if path in chosen else before[path] for path in before}
    assert chosen and any(before[path] != expected[path] for path in set(before) - chosen)


@FORMATS
def test_renamed(tmp_path, name):
    def torch_like(path):
        return path.replace("blocks", "encoder/layers").replace("kernel", "weight")

    saved, fresh = make(nnx, 0), make(nnx, 5)
    checkpoints.save(tmp_path / name, saved, rename=torch_like)
    assert "encoder/layers/10/weight" in {p.removesuffix("/value") for p in checkpoints.contents(tmp_path / name)}
    checkpoints.restore(tmp_path / name, fresh, rename=torch_like)
    assert numbers(nnx, fresh) == numbers(nnx, saved)
    with pytest.raises(ValueError, match=r"rename gives a and b the same name, x\."):
        checkpoints.save(tmp_path / "x", nnx.Dict(a=nnx.Param(1.0), b=nnx.Param(2.0)), rename=lambda path: "x")
    with pytest.raises(ValueError, match=r"rename must return a name such as 'layer/kernel'; it gave '' for a\."):
        checkpoints.save(tmp_path / "x", nnx.Dict(a=nnx.Param(1.0)), rename=lambda path: "")


@FORMATS
@pytest.mark.parametrize("pure", [False, True])
def test_contents_and_read(tmp_path, name, pure):
    model = nnx.List([nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(1))])
    checkpoints.save(tmp_path / name, model, pure=pure)
    held = checkpoints.contents(tmp_path / name)
    assert {path: (x.shape, str(x.dtype)) for path, x in held.items()} == {
        "0/bias": ((3,), "float32"),
        "0/kernel": ((2, 3), "float32"),
        "1/rngs/count": ((), "uint32"),
        "1/rngs/key": ((2,), "uint32"),
    }
    arrays = checkpoints.read(tmp_path / name)
    assert np.array_equal(arrays[0]["kernel"], model[0].kernel[...])
    assert np.array_equal(arrays[1]["rngs"]["key"], jax.random.key_data(model[1].rngs.key[...]))


def test_overwriting(tmp_path):
    for name in ("directory", "file.safetensors"):
        path = tmp_path / name
        checkpoints.save(path, nnx.Dict(a=nnx.Param(jnp.zeros(2))))
        with pytest.raises(FileExistsError, match=rf"something at .*{name} already\. Pass overwrite=True"):
            checkpoints.save(path, nnx.Dict(b=nnx.Param(jnp.ones(2))))
        assert list(checkpoints.contents(path)) == ["a"]
        checkpoints.save(path, nnx.Dict(b=nnx.Param(jnp.ones(2))), overwrite=True)
        assert list(checkpoints.contents(path)) == ["b"]


# --------------------------------------------------------------------------------------------------- placement


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
def test_into_an_abstract_model(tmp_path, name, mesh):
    """Shapes are enough: the metadata of Variables and the mesh around say where arrays go."""
    saved = sharded(mesh)
    checkpoints.save(tmp_path / name, saved)
    with jax.set_mesh(mesh):
        abstract = nnx.eval_shape(divided)
        assert isinstance(abstract.kernel.get_raw_value(), jax.ShapeDtypeStruct)
        restored = checkpoints.restore(tmp_path / name, abstract)
    assert restored.kernel[...].sharding == NamedSharding(mesh, P(None, "model"))
    assert isinstance(restored.bias.get_raw_value(), jax.Array)
    assert numbers(nnx, restored) == numbers(nnx, saved)


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
