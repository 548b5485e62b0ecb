"""Directories of orbax."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from sonde import nnx
from sonde.nnx import checkpoints
from sonde.nnx.checkpoints import orbax_format
from sonde.nnx.checkpoints.entries import entries_of


def test_overwriting(tmp_path):
    for name in ("directory", "file.safetensors"):
        path = tmp_path / name
        checkpoints.save(path, nnx.Dict(a=nnx.Param(jnp.zeros(2))))
        with pytest.raises(FileExistsError, match=rf".*{name} already exists\. Pass overwrite=True"):
            checkpoints.save(path, nnx.Dict(b=nnx.Param(jnp.ones(2))))
        assert list(checkpoints.contents(path)) == ["a"]
        checkpoints.save(path, nnx.Dict(b=nnx.Param(jnp.ones(2))), overwrite=True)
        assert list(checkpoints.contents(path)) == ["b"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory that was written here."""
    path = tmp_path_factory.mktemp("orbax") / "checkpoint"
    model = nnx.Dict(layers=nnx.List([nnx.Dict(w=nnx.Param(jnp.arange(3.0)))]), bare=jnp.ones(2, jnp.int32))
    orbax_format.write(str(path), entries_of(model), pure=False, overwrite=False)
    return path


def test_plain_orbax_reads_it(saved):
    with ocp.StandardCheckpointer() as reader:
        found = reader.restore(saved)
    np.testing.assert_array_equal(found["layers"]["0"]["w"]["value"], [0, 1, 2])
    np.testing.assert_array_equal(found["bare"], [1, 1])  # no Variable is around it


def test_what_there_is_and_reading_a_part_of_it(saved):
    path = str(saved)
    assert orbax_format.describe(path) == {
        ("layers", "0", "w", "value"): jax.ShapeDtypeStruct((3,), jnp.float32),
        ("bare",): jax.ShapeDtypeStruct((2,), jnp.int32),
    }
    found = orbax_format.fetch(path, {("bare",): np.zeros(2)})
    assert list(found) == [("bare",)]
    np.testing.assert_array_equal(found["bare",], [1, 1])


def test_what_is_no_checkpoint_says_what_is_there(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no checkpoint at .*nowhere"):
        orbax_format.describe(str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match="is not an orbax checkpoint: it has no file _METADATA"):
        orbax_format.describe(str(tmp_path))
    with pytest.raises(FileNotFoundError, match="it contains 1 of them, the last is .*checkpoint"):
        orbax_format.describe(str(saved.parent))
