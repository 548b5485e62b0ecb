"""Checkpoints that are damaged: the error names the path."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx import checkpoints

DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "noise": lambda file: file.write_bytes(random.Random(0).randbytes(file.stat().st_size)),
    "other": lambda file: file.write_text("{}"),
}


def model(value: float) -> nnx.State:
    return nnx.State({"a": nnx.Param(jnp.full(3, value)), "b": nnx.Param(jnp.full(2, value))})


# orbax leaves tasks of a reading that has failed to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["run/_METADATA", "run/manifest.ocdbt", "run/d", "model.safetensors"])
def test_a_damaged_checkpoint_is_named(tmp_path: Path, name: str, damage: str) -> None:
    path, node = tmp_path / name.partition("/")[0], model(0.0)
    checkpoints.save(path, model(1.0))
    file = tmp_path / name
    DAMAGES[damage](next(file.iterdir()) if file.is_dir() else file)
    for read in (checkpoints.contents, checkpoints.read, lambda path: checkpoints.restore(path, node)):
        with pytest.raises((ValueError, FileNotFoundError), match="checkpoint") as caught:
            read(path)
        assert str(path) in str(caught.value)
    assert not node["a"].get_value().any() and not node["b"].get_value().any()


def test_a_folder_with_the_name_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").mkdir()
    with pytest.raises(ValueError, match=r"x\.safetensors is not a file"):
        checkpoints.contents(tmp_path / "x.safetensors")
