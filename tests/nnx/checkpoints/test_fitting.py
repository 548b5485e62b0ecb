"""Everything that does not fit is named in one message, and nothing is changed."""

from __future__ import annotations

import subprocess
import sys

import jax.numpy as jnp
import pytest
from tests.nnx.checkpoints.models import numbers

from sonde import nnx
from sonde.nnx import checkpoints

FORMATS = pytest.mark.parametrize("name", ["directory", "file.safetensors"])


def two(seed=0, **widths):
    return nnx.Dict({key: nnx.Linear(2, width, rngs=nnx.Rngs(seed)) for key, width in widths.items()})


@FORMATS
def test_everything_is_named(tmp_path, name):
    checkpoints.save(tmp_path / name, two(a=3, b=3, c=3), pure=True)
    model = two(5, a=3, b=4, d=3)
    before = numbers(nnx, model)
    with pytest.raises(ValueError) as error:
        checkpoints.restore(tmp_path / name, model)
    assert str(error.value) == (
        f"The checkpoint {tmp_path / name} does not fit the model. Nothing was restored.\n"
        "  not in the checkpoint (2):\n"
        "    d/bias\n"
        "    d/kernel\n"
        "  not in the model (2):\n"
        "    c/bias\n"
        "    c/kernel\n"
        "  of another shape (2):\n"
        "    b/bias: the checkpoint has (3,), the model (4,)\n"
        "    b/kernel: the checkpoint has (2, 3), the model (2, 4)\n"
        "To restore anyway: missing='keep' keeps the model's own values; "
        "extra='ignore' leaves the rest of the checkpoint alone."
    )
    assert numbers(nnx, model) == before


@FORMATS
def test_long_lists_are_cut(tmp_path, name):
    checkpoints.save(tmp_path / name, two(a=3))
    with pytest.raises(ValueError, match=r"not in the checkpoint \(12\):\n(    .*\n){8}    and 4 more\n"):
        checkpoints.restore(tmp_path / name, two(a=3, b=3, c=3, d=3, e=3, f=3, g=3))


@FORMATS
def test_parts_can_be_restored(tmp_path, name):
    saved, model = two(a=3, b=3), two(5, a=3, c=3)
    checkpoints.save(tmp_path / name, saved)
    before = numbers(nnx, model)
    checkpoints.restore(tmp_path / name, model, missing="keep", extra="ignore")
    assert numbers(nnx, model.a) == numbers(nnx, saved.a)
    assert {p: x for p, x in numbers(nnx, model).items() if p[0] == "c"} == {
        p: x for p, x in before.items() if p[0] == "c"
    }
    for option, complaint in ({"missing": "keep"}, "not in the model"), ({"extra": "ignore"}, "not in the checkpoint"):
        with pytest.raises(ValueError, match=complaint):
            checkpoints.restore(tmp_path / name, model, **option)


@FORMATS
def test_shapes_must_fit_whatever_is_allowed(tmp_path, name):
    checkpoints.save(tmp_path / name, two(a=3))
    with pytest.raises(ValueError, match=r"a/bias: the checkpoint has \(3,\), the model \(4,\)"):
        checkpoints.restore(tmp_path / name, two(a=4), missing="keep", extra="ignore", cast=True)


@FORMATS
def test_shapes_cannot_be_kept(tmp_path, name):
    checkpoints.save(tmp_path / name, two(a=3))
    abstract = nnx.eval_shape(lambda: two(a=3, b=3))
    with pytest.raises(ValueError, match=r"b/bias \(the model has no value to keep\)"):
        checkpoints.restore(tmp_path / name, abstract, missing="keep")


@FORMATS
def test_dtypes(tmp_path, name):
    checkpoints.save(tmp_path / name, nnx.Dict(a=nnx.Param(jnp.full(2, 1.5))))
    model = nnx.Dict(a=nnx.Param(jnp.zeros(2, jnp.bfloat16)))
    with pytest.raises(
        ValueError,
        match=r"a: the checkpoint has float32, the model bfloat16\nTo restore anyway: cast=True converts\.",
    ):
        checkpoints.restore(tmp_path / name, model)
    checkpoints.restore(tmp_path / name, model, cast=True)
    assert model.a.dtype == jnp.bfloat16 and model.a[...].tolist() == [1.5, 1.5]


def test_wrong_arguments(tmp_path):
    with pytest.raises(TypeError, match=r"A checkpoint holds Modules, States, or pytrees of them; got a Param\."):
        checkpoints.save(tmp_path / "x", nnx.Param(1.0))
    with pytest.raises(ValueError, match=r"missing='error' or 'keep' and extra='error' or 'ignore'; got 'skip', 'er"):
        checkpoints.restore(tmp_path / "x", two(a=3), missing="skip")  # type: ignore[arg-type]
    for name in ("x", "x.safetensors"):
        with pytest.raises(FileNotFoundError, match=rf"There is no checkpoint at .*/{name}\."):
            checkpoints.contents(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"is not an orbax checkpoint: it has no file _METADATA"):
        checkpoints.read(tmp_path)
    with pytest.raises(ValueError, match=r"cannot hold a: its dtype is float8_e4m3fn"):
        checkpoints.save(tmp_path / "x.safetensors", nnx.Dict(a=nnx.Param(jnp.zeros(2, jnp.float8_e4m3fn))))
    with pytest.raises(ValueError, match=r"rename gives .* and .* the same name, a/b"):
        checkpoints.save(tmp_path / "x.safetensors", {"a.b": two(a=1).a.bias, "a": {"b": two(a=1).a.bias}})


def test_missing_packages(tmp_path):
    """Importing needs neither package; using a format without its package names the extra."""
    code = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("orbax", "safetensors"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
from sonde import nnx
from sonde.nnx import checkpoints
assert "orbax" not in sys.modules and "safetensors" not in sys.modules
model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
for path in {str(tmp_path / "x")!r}, {str(tmp_path / "x.safetensors")!r}:
    for verb in ("save", "restore", "contents", "read"):
        try:
            getattr(checkpoints, verb)(*((path, model) if verb in ("save", "restore") else (path,)))
        except ModuleNotFoundError as error:
            print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    directory, file = (
        "A checkpoint directory needs the package 'orbax', which is not installed. Install it with "
        "`pip install 'sonde-jax[checkpoints]'`.\n",
        "A .safetensors file needs the package 'safetensors', which is not installed. Install it with "
        "`pip install 'sonde-jax[safetensors]'`.\n",
    )
    assert done.stdout == directory * 4 + file * 4, done.stderr
