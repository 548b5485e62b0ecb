"""`sonde run`: scripts as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import sys, jax, jax.numpy as jnp, optax
from functools import partial
from helper import target
opt = optax.adam(float(sys.argv[1]), eps=0.0)
params, best = {"w": jnp.ones(3), "b": jnp.zeros(())}, jnp.inf
state = opt.init(params)
@partial(jax.jit, donate_argnums=(0, 1))
def step(params, state, x, best, use):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"] + use * p["b"] - target) ** 2))(params)
    updates, state = opt.update(grads, state)
    return optax.apply_updates(params, updates), state, loss, jnp.minimum(best, loss)
for i in range(9):
    params, state, loss, best = step(params, state, jnp.ones((4, 3)), best, 1.0 if len(sys.argv) > 2 else 0.0)
print("loss", bool(jnp.isfinite(loss)))
"""


@pytest.fixture
def script(folder: Path):
    (folder / "helper.py").write_text("target = 20.0\n")

    def write(text: str) -> str:
        (folder / "train.py").write_text(text)
        return "train.py"

    yield write
    sys.modules.pop("helper", None)


def test_the_very_call_is_explained(script, sonde) -> None:
    result = sonde("run", "--every", "3", script(TRAIN), "0.1")
    assert result.exit_code == 1 and "loss" not in result.stdout
    assert "Not finite in call 0 of step" in result.stderr
    assert "the first NaN is made by div of float32 0 and float32 0 (0 / 0)" in result.stderr
    assert "train.py:11 in step" in result.stderr and "result[0]['b']" in result.stderr


def test_a_script_that_is_fine_is_left_alone(script, sonde) -> None:
    result = sonde("run", script(TRAIN), "0.1", "--use")  # which is an option of the script
    assert (result.exit_code, result.stdout) == (0, "loss True\n")
    result = sonde("run", script("import sys\nprint(sys.argv, __name__)\nsys.exit(7)"), "a", "--every", "3")
    assert (result.exit_code, result.stdout) == (7, "['train.py', 'a', '--every', '3'] __main__\n")
    assert sys.argv[0] != "train.py"


def test_intended_infs_do_not_stop_a_script(script, sonde) -> None:
    text = "import jax, jax.numpy as jnp\nf = jax.jit(lambda x: (x, -jnp.inf))\nfor i in range(9): f(1.0)\nprint('end')"
    assert sonde("run", script(text)).stdout == "end\n"


RAISES = """
import jax, jax.numpy as jnp, equinox as eqx
@eqx.filter_jit
def f(x):
    y = jnp.log(x - 2)
    return eqx.error_if(y, jnp.isnan(y).any(), "my own check")
f(jnp.ones(3) + 2)
f(jnp.ones(3))
"""


@pytest.mark.filterwarnings("ignore")
def test_a_script_that_raises(script, sonde) -> None:
    result = sonde("run", script(RAISES))
    assert result.exit_code == 1 and "train.py:5: the first NaN is made by log" in result.stderr
    assert "my own check" in result.stderr
    result = sonde("run", script("x = 1\nraise KeyError('nothing to do with numbers')"))
    assert result.exit_code == 1 and "nothing to do with numbers" in result.stderr and "runpy" not in result.stderr


def test_a_module_and_json(script, sonde) -> None:
    script(TRAIN)
    data = json.loads(sonde.ok("run", "-m", "--json", "--every", "2", "train", "0.1", code=1))
    assert data["call"] == "call 0 of step" and data["first"]["operation"] == "div"
    assert "there is no file 'missing.py'" in sonde.error("run", "missing.py")


FLAX = """
import jax.numpy as jnp
from flax import nnx
class Model(nnx.Module):
    def __init__(self):
        self.layers = nnx.List([nnx.Linear(3, 3, rngs=nnx.Rngs(i)) for i in range(2)])
    def __call__(self, x):
        for layer in self.layers:
            x = jnp.sqrt(layer(x) ** 2 - 1e-6)
        return x
@nnx.jit
def step(model, x):
    return nnx.grad(lambda m: m(x).sum())(model)
model = Model()
for i in range(4):
    step(model, jnp.zeros((2, 3)) + (0.0 if i == 2 else 1.0))
"""


def test_functions_that_cannot_be_called_again_run_as_they_were_traced(script, sonde) -> None:
    result = sonde("run", script(FLAX))  # the update context of nnx.jit has ended when the search begins
    assert "Not finite in call 2 of step" in result.stderr
    assert "train.py:9: the first NaN is made by sqrt of float32[2,3]" in result.stderr


DATA = """
import jax, jax.numpy as jnp, numpy as np
step = jax.jit(lambda w, x: w - jnp.mean(x @ w), static_argnames=())
w = jnp.ones(3)
for i in range(4):
    x = np.ones((4, 3), np.float32)
    x[1, 2] = np.nan if i == 2 else 0
    w = step(w, x)
"""


def test_nan_in_data_is_named(script, sonde) -> None:
    result = sonde("run", script(DATA))
    assert "Not finite in call 2 of <lambda>" in result.stderr
    assert "the first NaN is argument x[1, 2], float32[4,3]" in result.stderr


def test_loops_and_maps_outside_of_jit_are_watched(script, sonde) -> None:
    text = "import jax, jax.numpy as jnp\ndef body(c, x):\n  c = c - x\n  return c, jnp.sqrt(c)\n"
    result = sonde("run", script(text + "jax.lax.scan(body, 3.0, jnp.ones(6))"))
    assert "Not finite in call 0 of body" in result.stderr and "at scan iteration 3" in result.stderr
    result = sonde("run", script(text + "jax.vmap(body)(jnp.arange(3.0), jnp.ones(3))"))
    assert "train.py:4: the first NaN is made by sqrt" in result.stderr and "example 0" in result.stderr


DROPPED = """
import jax, jax.numpy as jnp
density = jax.jit(lambda x: jnp.where(x > 0, -x, -jnp.inf))
if density(-2.0) == -jnp.inf:
    raise RuntimeError("no valid start")
"""


def test_a_script_that_raises_about_an_intended_inf(script, sonde) -> None:
    result = sonde("run", script(DROPPED))
    assert "because -2 > 0 is false" in result.stderr and "not certain" in result.stderr
    assert "The program raised: RuntimeError: no valid start" in result.stderr


def test_it_says_what_was_not_looked_at(script, sonde) -> None:
    result = sonde("run", script("import jax.numpy as jnp\nloss = jnp.log(jnp.array(-1.0)).sum()"))
    assert result.exit_code == 0 and "nothing was looked at" in result.stderr
    assert "NaN at the end of the script in loss" in result.stderr
    result = sonde("run", script("import jax, jax.numpy as jnp\njax.jit(jnp.add)(jnp.ones(2), jnp.ones(3))"))
    assert result.exit_code == 1 and "call 0 of add raised this" in result.stderr


ENVIRONMENT = """
import os
os.environ["JAX_ENABLE_X64"] = "1"
import jax, jax.numpy as jnp
def f(x):
    return jnp.log(x - 1e300)
if __name__ == "__main__":
    print(f(jnp.array(2e300)))
"""


def test_programs_set_up_jax_before_they_import_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(ENVIRONMENT)
    asked = [("run", "program.py"), ("nonfinite", "program.py:f", "--args", "2e300"), ("report", "program.py:f")]
    asked[2] += ("--args", "2e300", "--inside", "program.py:f", "--json")
    for arguments in asked:
        command = [sys.executable, "-m", "sonde.cli", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert any(text in done.stdout for text in ("690.7", "Every result", "690.77")), done.stdout
