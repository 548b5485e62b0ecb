"""What a model has to store, and under which names."""

from __future__ import annotations

import pytest
from tests.nnx.checkpoints.models import make, numbers, train

from sonde import nnx
from sonde.nnx import checkpoints

FORMATS = pytest.mark.parametrize("name", ["directory", "file.safetensors"])


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
