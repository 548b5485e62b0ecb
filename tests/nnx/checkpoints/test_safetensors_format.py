"""Files of safetensors, against the library that reads them everywhere else."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors.numpy import load_file, save_file

from sonde import nnx
from sonde.nnx.checkpoints import safetensors_format
from sonde.nnx.checkpoints.entries import entries_of

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_arrays_are_under_dotted_names(tmp_path):
    path = str(tmp_path / "deep" / "a.safetensors")  # folders are made
    model = nnx.Dict(layers=nnx.List([nnx.Dict(w=nnx.Param(jnp.asarray(X)))]), n=nnx.Param(jnp.int8(3)), name="model")
    safetensors_format.write(path, entries_of(model), overwrite=False)
    found = load_file(path)
    assert sorted(found) == ["layers.0.w", "n"]
    np.testing.assert_array_equal(found["layers.0.w"], X)
    assert (found["n"].dtype, int(found["n"])) == (np.int8, 3)


def test_parts_of_a_value_and_random_keys(tmp_path):
    path = str(tmp_path / "a.safetensors")
    key = jax.random.key(7)
    state = nnx.State({"v": nnx.Variable({"a": jnp.asarray(X), "b": [jnp.ones(1)]}), "key": nnx.Variable(key)})
    safetensors_format.write(path, entries_of(state), overwrite=False)
    found = load_file(path)
    assert sorted(found) == ["key", "v.a", "v.b.0"]
    np.testing.assert_array_equal(found["key"], jax.random.key_data(key))


def test_what_there_is_is_described_without_reading(tmp_path):
    path = str(tmp_path / "a.safetensors")
    save_file({"a.b": X, "c": np.ones(2, np.uint16)}, path)
    assert safetensors_format.describe(path) == {
        ("a", "b"): jax.ShapeDtypeStruct((2, 3), jnp.float32),
        ("c",): jax.ShapeDtypeStruct((2,), jnp.uint16),
    }


def test_what_is_wanted_is_read_and_nothing_else(tmp_path):
    path = str(tmp_path / "a.safetensors")
    save_file({"a": X, "b": X + 1}, path)
    found = safetensors_format.fetch(path, {("b",): jnp.zeros((2, 3))})
    assert list(found) == [("b",)]
    np.testing.assert_array_equal(found["b",], X + 1)


def test_a_sharded_array_is_read_part_by_part(tmp_path):
    path = str(tmp_path / "a.safetensors")
    save_file({"a": X}, path)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, P("d"))
    wanted = jax.ShapeDtypeStruct((2, 3), jnp.float32, sharding=sharding)
    (found,) = safetensors_format.fetch(path, {("a",): wanted}).values()
    assert found.sharding == sharding
    np.testing.assert_array_equal(found, X)


def test_bfloat16_goes_both_ways(tmp_path):
    path = str(tmp_path / "a.safetensors")
    value = jnp.asarray(X, jnp.bfloat16)
    safetensors_format.write(path, entries_of(nnx.Dict(w=nnx.Param(value))), overwrite=False)
    assert safetensors_format.describe(path)["w",].dtype == jnp.bfloat16
    np.testing.assert_array_equal(safetensors_format.fetch(path, {("w",): value})["w",], value)


def test_a_name_with_a_dot_is_two_levels():
    assert safetensors_format.dotted("layer.0/kernel") == "layer/0/kernel"


def test_errors_name_the_file_or_the_array(tmp_path):
    path = str(tmp_path / "a.safetensors")
    with pytest.raises(FileNotFoundError, match=f"There is no checkpoint at {path}"):
        safetensors_format.describe(path)
    eight_bits = nnx.Dict(deep=nnx.Dict(w=nnx.Param(jnp.ones(2, jnp.float8_e4m3fn))))
    with pytest.raises(ValueError, match="cannot hold deep/w: its dtype is float8_e4m3fn"):
        safetensors_format.write(path, entries_of(eight_bits), overwrite=False)
    assert not (tmp_path / "a.safetensors").exists()
    model = nnx.Dict(w=nnx.Param(jnp.ones(2)))
    safetensors_format.write(path, entries_of(model), overwrite=False)
    with pytest.raises(FileExistsError, match="Pass overwrite=True"):
        safetensors_format.write(path, entries_of(model), overwrite=False)
    model.w[...] = jnp.zeros(2)
    safetensors_format.write(path, entries_of(model), overwrite=True)
    np.testing.assert_array_equal(load_file(path)["w"], [0, 0])
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(ValueError, match="is not a file"):
        safetensors_format.describe(str(tmp_path / "folder.safetensors"))
