"""Calls on disk: what `sonde run` leaves, and `sonde replay`; and cells of notebooks."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.notebook_shell import notebook

from sonde.errors import StoreError
from sonde.tools.training.bundle import read_bundle, write_bundle

SCRIPT = """
import jax, jax.numpy as jnp, sonde
@jax.jit
def step(w, n):
    return {"w": sonde.sow(w * 2, "h") / (n - 1)}
for i in range(6):
    step(jnp.ones(3, jnp.bfloat16), jnp.int32(5 - i))
"""


def test_run_leaves_a_bundle_a_page_and_statistics(folder: Path, sonde) -> None:
    (folder / "train.py").write_text(SCRIPT)
    options = ("--every", "2", "--report", "page.html", "--monitor", "h.jsonl", "--bundle", "left")
    result = sonde("run", *options, "train.py")
    assert result.exit_code == 1 and "div of bfloat16[3], all 2 and bfloat16 0" in result.stderr
    assert "bundle: left" in result.stderr and "First Inf" in (folder / "page.html").read_text()
    lines = [json.loads(line) for line in (folder / "h.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4] and lines[0]["step/h/mean"] == 2.0
    data = json.loads(sonde.ok("replay", "--json", "left", code=1))
    assert data["repeated"] and data["not_finite"] == ["result['w']"] and "div of" in data["answer"]
    assert "holds no bundle: bundle.json is missing" in sonde.error("replay", "nowhere")


def test_a_bundle_holds_the_call(tmp_path: Path) -> None:
    def f(tree, *, key, scale):
        return jax.random.normal(key, (2,)) * scale + tree["x"].astype(jnp.float32), key

    args = ({"x": jnp.asarray([1, 2], jnp.bfloat16), "name": "a string"},)
    kwargs = {"key": jax.random.key(3), "scale": jnp.float32(2)}
    bundle = read_bundle(write_bundle(tmp_path / "b", f, args, kwargs, answer="none"))
    found = bundle.replay()
    expected, _ = f(*args, **kwargs)
    np.testing.assert_allclose(found.results["result[0]"], expected, rtol=1e-6)
    assert list(bundle.inputs) == ["args[0]['x']", "kwargs['key']", "kwargs['scale']"]
    assert found.is_repeated and not found.not_finite and bundle.answer == "none"


def test_what_cannot_be_exported_is_said(tmp_path: Path) -> None:
    def f(x):
        return jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct((), jnp.float32), x)

    bundle = read_bundle(write_bundle(tmp_path / "b", f, (jnp.float32(2),), {}))
    assert bundle.inputs["args[0]"] == 2 and bundle.why_not_exported
    with pytest.raises(StoreError, match="the bundle of f holds no program"):
        bundle.replay()


def test_damage_is_an_error(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b", lambda x: x, (jnp.ones(2),), {})
    (folder / "inputs.npz").write_bytes(b"no zip")
    with pytest.raises(StoreError, match="is damaged"):
        read_bundle(folder)


def test_cells() -> None:
    with notebook(shows_results=False) as shell:
        cells = shell.namespace["get_ipython"]()
        cells.run_line_magic("load_ext", "sonde")
        shell.run("import jax, jax.numpy as jnp\nf = jax.jit(lambda x: jnp.log(x))")
        plain = shell.namespace["f"]
        found = cells.run_cell_magic("sonde", "--every 2", "for x in (1.0, 0.0): y = f(jnp.float32(x))")
        assert found.operation == "log" and found.element == "log(0)"
        assert cells.run_cell_magic("sonde", "", "z = f(jnp.float32(2.0))") is None
        assert shell.namespace["f"] is plain and "z" in shell.namespace


def test_cells_watch_what_objects_hold_and_functions_of_the_cell_no_longer() -> None:
    with notebook(shows_results=False) as shell:
        cells = shell.namespace["get_ipython"]()
        cells.run_line_magic("load_ext", "sonde")
        shell.run(
            "import jax, jax.numpy as jnp\nclass Holder:\n    def __init__(self):\n"
            "        self.step = jax.jit(jnp.log)\n"
            "holder = Holder()\nplain = holder.step"
        )
        found = cells.run_cell_magic("sonde", "", "y = holder.step(jnp.float32(0.0))")
        assert found.operation == "log" and shell.namespace["holder"].step is shell.namespace["plain"]
        assert cells.run_cell_magic("sonde", "", "g = jax.jit(jnp.sqrt)\ny = g(jnp.float32(1.0))") is None
        shell.run("nan = g(jnp.float32(-1.0))")  # runs as a plain function
        assert "nan" in shell.namespace
        assert cells.run_cell_magic("sonde", "", "y = g(jnp.float32(-1.0))").operation == "sqrt"
