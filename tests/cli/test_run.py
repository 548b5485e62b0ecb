"""`sonde run`: scripts as they are."""

from __future__ import annotations

import json
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
