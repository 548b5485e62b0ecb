"""Elastic harvests: processes come and go, and every unit is in the store once."""

from __future__ import annotations

import concurrent.futures
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


def repair(folder, batches=BATCHES):
    return store.repair(double, batches, folder)


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
    (repaired,) = repair(tmp_path)
    assert str(repaired) == f"unit 2: {damage.name}, rows 0 to {len(np.concatenate(BATCHES[6:9])) - 1}: {damage.reason}"
    np.testing.assert_array_equal(store.open(tmp_path)["h"][:], EXPECTED)
    next(unit.rglob("sonde.json")).write_bytes(b"{}")
    with pytest.raises(StoreError, match=r"sonde\.json of the store .* is damaged"):
        store.check(tmp_path)
    assert [damage.name for damage in repair(tmp_path)] == ["unit 2"]
    np.testing.assert_array_equal(store.open(tmp_path)["h"][:], EXPECTED)
    assert repair(tmp_path) == [] == store.check(tmp_path)
    with pytest.raises(StoreError, match="give its 40 batches as a list"):
        repair(tmp_path, BATCHES[:39])
    (unit / "done.json").unlink()
    for read in (store.open, store.check):  # rows that were there would be missing without a word
        with pytest.raises(StoreError, match=r"units/00000002/done\.json of the store .* is damaged: it is missing"):
            read(tmp_path)
    assert [str(damage).partition(":")[0] for damage in repair(tmp_path)] == ["unit 2"]
    (tmp_path / "units-complete.json").write_bytes(b"{}")
    with pytest.raises(StoreError, match=r"complete\.json of the store .* is damaged"):
        store.open(tmp_path)
    assert [damage.name for damage in repair(tmp_path)] == ["all units"] and store.open(tmp_path).finished
    leave(tmp_path, 2)
    assert not store.open(tmp_path).finished and store.open(tmp_path).n_batches == 6
    (tmp_path / "units.json").write_bytes((tmp_path / "units.json").read_bytes()[:-9])
    with pytest.raises(StoreError, match=r"units\.json of the store .* is damaged"):
        store.open(tmp_path)


def leave(folder: Path, *units: int) -> None:
    """Makes units such that nobody has computed them."""
    (folder / "units-complete.json").unlink(missing_ok=True)
    for unit in units:
        for name in ("done.json", "claim.json"):
            (folder / "units" / f"{unit:08d}" / name).unlink()


def test_a_process_with_other_batches_is_refused_when_it_comes(tmp_path):
    harvest(tmp_path)
    leave(tmp_path, 4, 5)
    others = list(BATCHES)
    others[10], others[14] = others[14], others[10]  # of unit 3, which is done, and of unit 4
    with pytest.raises(StoreError, match="batch 10 of this process is not the one that unit 3 of the store"):
        store.harvest(double, others, tmp_path, progress=False, unit=3)
    assert store.open(tmp_path).n_batches == 12  # it has added nothing
    np.testing.assert_array_equal(harvest(tmp_path)["h"][:], EXPECTED)


def test_processes_that_start_together_with_other_batches_are_refused(tmp_path):
    class Slow(list):
        def __getitem__(self, i):
            time.sleep(0.02)
            return super().__getitem__(i)

    others = [BATCHES[0], *reversed(BATCHES[1:])]  # the first is the same
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(store.harvest, double, Slow(batches), tmp_path, progress=False, unit=1)
            for batches in (BATCHES, others)
        ]
        errors = [one.exception() for one in made]
    assert all(isinstance(error, StoreError) and "of this process is not the one" in str(error) for error in errors)


@pytest.mark.parametrize("other", [np.full((2, 1), 7, np.float32), np.full((2, 3), 300, np.int32)])
def test_units_with_other_rows_are_refused(tmp_path, other):
    with pytest.raises(StoreError, match="has other sites or rows than other units: values/h; pad batches"):
        store.harvest(double, [np.ones((2, 3), np.float32), other], tmp_path, unit=1, progress=False)
    parts = [tmp_path / "a", tmp_path / "b"]
    for part, batch in zip(parts, (np.ones((2, 3), np.float32), other)):
        store.harvest(double, [batch] * 2, part, unit=1, progress=False)
    (attempts, others) = (part / "units" / "00000001" / "attempts" for part in parts)
    (attempt,) = attempts.iterdir()
    shutil.rmtree(attempt)
    shutil.copytree(next(others.iterdir()), attempt)
    with pytest.raises(StoreError, match="unit 1 of the store .* holds other rows: values/h"):
        store.open(parts[0])


def test_attempts_that_do_not_count_are_removed(tmp_path):
    harvest(tmp_path)
    leave(tmp_path, 3)
    harvest(tmp_path)
    for unit in (tmp_path / "units").iterdir():
        assert len({file.relative_to(unit).parts[1] for file in (unit / "attempts").rglob("*") if file.is_file()}) == 1


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


@pytest.mark.every(2)
@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_processes_come_and_go(tmp_path, monkeypatch, where):
    with bucket() as server:
        environment, storage, folder = {}, None, str(tmp_path / "store")
        if where == "bucket":
            monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
            environment = {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "name", "AWS_SECRET_ACCESS_KEY": "word"}
            storage, folder = store.Storage(endpoint_url=server.url, anonymous=True), "s3://acts/units"
        _kill_and_go_on(tmp_path, folder, count=2, kills=2 if where == "folder" else 1, **environment)
        kept = store.open(folder, storage=storage)
        assert kept.finished and kept.n_batches == 40 and store.check(folder, storage=storage) == []
        np.testing.assert_array_equal(kept["h"][:], EXPECTED)
