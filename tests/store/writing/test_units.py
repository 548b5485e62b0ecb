"""Elastic harvests: processes come and go, and every unit is in the store once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.processes import xla_flags
from tests.store.bucket import bucket

import sonde
from sonde import store
from sonde.errors import StoreError

PROGRAM = """
import sys, time
import numpy as np
import sonde
from sonde import store


class Batches:
    def __len__(self):
        return 40

    def __getitem__(self, i):
        time.sleep(0.03)
        return np.random.default_rng(i).standard_normal((5 + i % 3, 4)).astype(np.float32)


def f(x):
    return sonde.sow(x * 2, "h")


options = {"keep": lambda x: x[:, 0] > 0} if len(sys.argv) > 2 else {}
store.harvest(f, Batches(), sys.argv[1], unit=3, lease=1.0, progress=False, **options)
"""
BATCHES = [np.random.default_rng(i).standard_normal((5 + i % 3, 4)).astype(np.float32) for i in range(40)]
EXPECTED = 2 * np.concatenate(BATCHES)


def double(x):
    return sonde.sow(x * 2, "h")


def harvest(folder, **options):
    return store.harvest(double, BATCHES, folder, progress=False, **{"unit": 3, **options})


def start(program: Path, folder: str, **environment: str) -> subprocess.Popen:
    whole = {**os.environ, "XLA_FLAGS": xla_flags(1), "JAX_PLATFORMS": "cpu", **environment}
    return subprocess.Popen([sys.executable, str(program), folder], env=whole)


def test_one_process(tmp_path):
    kept = harvest(tmp_path / "store")
    np.testing.assert_array_equal(kept["h"][:], EXPECTED)
    np.testing.assert_array_equal(kept["h"][[100, 3, 50]], EXPECTED[[100, 3, 50]])
    assert kept.finished and kept.n_batches == 40 and store.check(tmp_path / "store") == []
    rows = np.concatenate([batch["h"] for batch in kept.batches(4)])
    np.testing.assert_array_equal(rows, EXPECTED[: len(rows)])
    np.testing.assert_array_equal(harvest(tmp_path / "store")["h"][:], EXPECTED)  # nothing is left to do
    merged = store.merge([tmp_path / "store"], tmp_path / "merged")
    np.testing.assert_array_equal(merged["h"][:], EXPECTED)


def test_other_calls_are_refused(tmp_path):
    harvest(tmp_path)
    with pytest.raises(StoreError, match="40 batches in units of 3, this call 40 in units of 4"):
        harvest(tmp_path, unit=4)
    with pytest.raises(StoreError, match="was started by a different call: dtype"):
        harvest(tmp_path, dtype="float16")
    with pytest.raises(StoreError, match="is not empty and holds no store"):
        harvest(tmp_path, unit=None)
    with pytest.raises(TypeError, match="with len and index"):
        store.harvest(double, iter(BATCHES), tmp_path / "new", unit=3)


def test_damage_of_a_unit_is_noticed_and_it_can_be_computed_again(tmp_path):
    harvest(tmp_path)
    unit = tmp_path / "units" / "00000002"
    for data in [path for path in unit.rglob("c/*") if path.is_dir()]:
        shutil.rmtree(data)
    (damage,) = store.check(tmp_path)
    first = len(np.concatenate(BATCHES[:6]))
    assert damage.rows == (first, first + len(np.concatenate(BATCHES[6:9])))
    with pytest.raises(StoreError, match="cannot read values/h"):
        store.open(tmp_path)["h"][:]
    (unit / "done.json").unlink()
    assert not store.open(tmp_path).finished and store.open(tmp_path).n_batches == 6
    (unit / "claim.json").unlink()
    np.testing.assert_array_equal(harvest(tmp_path)["h"][:], EXPECTED)
    (tmp_path / "units.json").write_bytes((tmp_path / "units.json").read_bytes()[:-9])
    with pytest.raises(StoreError, match=r"units\.json of the store .* is damaged"):
        store.open(tmp_path)


def _kill_and_go_on(tmp_path: Path, folder: str, count: int, kills: int, **environment: str) -> None:
    """Some processes harvest; some are killed or preempted at random and others come."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    rng = random.Random(kills)
    processes = [start(program, folder, **environment) for _ in range(count)]
    for kill in range(kills):
        time.sleep(rng.uniform(0.5, 2.0))
        gone = processes.pop(rng.randrange(len(processes)))
        gone.send_signal(signal.SIGTERM if kill % 2 else signal.SIGKILL)
        assert gone.wait(60) in (0, -signal.SIGTERM, -signal.SIGKILL)
        processes += [start(program, folder, **environment) for _ in range(rng.randint(1, 2))][: 4 - len(processes)]
    for process in processes:
        assert process.wait(120) == 0


def test_processes_come_and_go(tmp_path):
    _kill_and_go_on(tmp_path, str(tmp_path / "store"), count=2, kills=2)
    kept = store.open(tmp_path / "store")
    assert kept.finished and kept.n_batches == 40 and store.check(tmp_path / "store") == []
    np.testing.assert_array_equal(kept["h"][:], EXPECTED)


def test_processes_share_a_bucket(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with bucket() as server:
        environment = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "name", "AWS_SECRET_ACCESS_KEY": "word"}
        _kill_and_go_on(tmp_path, "s3://acts/units", count=2, kills=1, **environment)
        storage = store.Storage(endpoint_url=server.url, anonymous=True)
        kept = store.open("s3://acts/units", storage=storage)
        assert kept.finished and store.check("s3://acts/units", storage=storage) == []
        np.testing.assert_array_equal(kept["h"][:], EXPECTED)
