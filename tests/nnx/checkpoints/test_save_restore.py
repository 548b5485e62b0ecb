"""Saving and restoring: both formats, every kind of value, abstract models, shardings."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from tests.nnx.checkpoints.models import numbers, train

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


# --------------------------------------------------------------------------------------------------- placement


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
def test_into_an_abstract_model(tmp_path, name, mesh):
    """Shapes are enough: the metadata of Variables and the current mesh determine the shardings."""
    saved = sharded(mesh)
    checkpoints.save(tmp_path / name, saved)
    with jax.set_mesh(mesh):
        abstract = nnx.eval_shape(divided)
        assert isinstance(abstract.kernel.get_raw_value(), jax.ShapeDtypeStruct)
        restored = checkpoints.restore(tmp_path / name, abstract)
    assert restored.kernel[...].sharding == NamedSharding(mesh, P(None, "model"))
    assert isinstance(restored.bias.get_raw_value(), jax.Array)
    assert numbers(nnx, restored) == numbers(nnx, saved)
