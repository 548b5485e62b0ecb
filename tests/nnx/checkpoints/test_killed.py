"""A save that replaces a checkpoint and is killed at any moment leaves either the old one or the new one intact."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sonde.nnx import checkpoints

# Replaces a checkpoint again and again; all arrays of one have the same number in them.
SAVES = """
import sys
import jax.numpy as jnp
from sonde import nnx
from sonde.nnx import checkpoints

for i in range(1, 10_000):
    state = nnx.State({f"layer{j}": nnx.Param(jnp.full((64, 64), float(i))) for j in range(8)})
    checkpoints.save(sys.argv[1], state, overwrite=True)
    print(i, flush=True)
"""


def number_in(path: Path) -> float:
    arrays = checkpoints.read(path)
    assert len(arrays) == 8
    (number,) = {x for array in arrays.values() for x in np.unique(array)}
    return float(number)


def check(path: Path, kills: int) -> None:
    moments = random.Random(0)
    for _ in range(kills):
        process = subprocess.Popen([sys.executable, "-c", SAVES, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(2):  # the first may find nothing to replace
            last = int(process.stdout.readline())
        time.sleep(moments.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        said = [last, *map(int, process.communicate()[0].split())]
        assert number_in(path) in (said[-1], said[-1] + 1)
    assert kills > 0


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["run", "model.safetensors"])
def test_a_save_that_is_killed(tmp_path: Path, name: str) -> None:
    check(tmp_path / name, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["run", "model.safetensors"])
def test_saves_that_are_killed(tmp_path: Path, name: str) -> None:
    check(tmp_path / name, 50)
