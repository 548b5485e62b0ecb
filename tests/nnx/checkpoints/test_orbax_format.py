"""Directories of orbax."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from sonde import nnx
from sonde.nnx import checkpoints


def test_overwriting(tmp_path):
    for name in ("directory", "file.safetensors"):
        path = tmp_path / name
        checkpoints.save(path, nnx.Dict(a=nnx.Param(jnp.zeros(2))))
        with pytest.raises(FileExistsError, match=rf"something at .*{name} already\. Pass overwrite=True"):
            checkpoints.save(path, nnx.Dict(b=nnx.Param(jnp.ones(2))))
        assert list(checkpoints.contents(path)) == ["a"]
        checkpoints.save(path, nnx.Dict(b=nnx.Param(jnp.ones(2))), overwrite=True)
        assert list(checkpoints.contents(path)) == ["b"]
