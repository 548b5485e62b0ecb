"""A harvest that stops at any moment loses only the batches in flight, and continues to the same bytes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import zarr
from tests.processes import xla_flags
from tests.store.forks import forks, kill

import sonde
from sonde import store
from sonde.errors import StoreError
from sonde.store.format.folder import Folder
from sonde.store.format.progress import ProgressFile
from sonde.store.format.sealed import seal
from sonde.store.writing import writer as writing

PROGRAM = """
from sonde.store.format import progress, zarr_arrays
from sonde.store.writing import writer

zarr_arrays.FILE_BYTES = 1 << 13  # small files: many commits, and some that are written twice
progress.SEGMENT_BYTES = 4000
writer.SECONDS = 0.0


def f(x):
    h = sonde.sow(jnp.sin(x) * 3, "a")
    return sonde.sow(h.sum(-1), "b")


def batches():
    for i in range(300):
        yield np.random.default_rng(i).standard_normal((17 + i % 3, 32)).astype(np.float32)


def main(_, folder, memory):
    options = {"dtype": "float16", "keys": lambda x: {"x": x[:, 0]}, "memory": int(memory), "progress": False}
    store.harvest(f, batches(), folder, **options)
"""
MEMORY = [1 << 30, 100_000]  # with the smaller one, rows wait on the disk


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    kept = store.open(folder)
    return {f"{a.kind}/{a.path}": a[:] for a in kept.arrays}


def _n_batches(folder: Path) -> int:
    return store.open(folder).n_batches if (folder / "sonde.json").exists() else 0


def _kill_and_go_on(tmp_path: Path, kills: int, seed: int) -> None:
    """Kills harvests that have listed something."""
    with forks(PROGRAM) as processes:
        undisturbed, folder = tmp_path / "undisturbed", tmp_path / "killed"
        processes.run(1, undisturbed, MEMORY[0])
        whole = _arrays(undisturbed)
        assert store.open(undisturbed).n_batches == 300
        rng = random.Random(seed)
        while kills:
            moment = _n_batches(folder) + rng.randint(1, 40)
            (process,) = processes.start(1, folder, rng.choice(MEMORY))
            end = time.monotonic() + 60
            while _n_batches(folder) < min(moment, 300):
                assert time.monotonic() < end
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.03))
            kill(process)
            (code,) = processes.ends()
            assert code in (0, -signal.SIGKILL)
            kills -= code != 0
            assert store.check(folder) == []
            for name, array in _arrays(folder).items():  # what is listed is there, and right
                assert array.tobytes() == whole[name][: len(array)].tobytes()
            if store.open(folder).finished or not kills:
                processes.run(1, folder, MEMORY[0])
                resumed = _arrays(folder)
                assert resumed.keys() == whole.keys() and store.open(folder).finished
                for name, array in resumed.items():
                    assert array.tobytes() == whole[name].tobytes()
                shutil.rmtree(folder)


@pytest.mark.every(2)
def test_killed_and_resumed(tmp_path):
    _kill_and_go_on(tmp_path, kills=3, seed=0)


@pytest.mark.thorough
def test_killed_five_hundred_times(tmp_path):
    _kill_and_go_on(tmp_path, kills=500, seed=1)


def test_what_a_killed_process_was_writing_does_not_get_into_files(tmp_path):
    whole = [np.full((2, 3), i, np.float32) for i in range(2)]
    make = lambda n: store.harvest(lambda x: sonde.sow(x, "h"), whole[:n], tmp_path, progress=False)
    for n, names in ((1, ["sonde.json"]), (2, ["values/h/c/0/0", "progress/0/00000.json", "values/h/zarr.json"])):
        for name in names:
            (tmp_path / f"{name}.__lock").write_text("x" * 100_000)
        np.testing.assert_array_equal(make(n)["h"][:], np.concatenate(whole[:n]))
        assert store.check(tmp_path) == [] and not list(tmp_path.rglob("*.__lock"))


def test_killed_before_all_files_exist(tmp_path, monkeypatch):
    make = lambda: store.harvest(lambda x: sonde.sow(x, "h"), [np.ones((2, 3), np.float32)], tmp_path, progress=False)

    def killed(*_):
        raise KeyboardInterrupt

    for owner, name in ((Folder, "write_all"), (ProgressFile, "create")):
        shutil.rmtree(tmp_path)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            if owner is Folder:
                patch.setattr(Folder, "write", lambda self, key, contents: real(self, {key: contents}))
                real = Folder.write_all
            patch.setattr(owner, name, killed)
            make()
        left = store.open(tmp_path)
        assert store.check(tmp_path) == [] and left["h"][:].shape == (0, 3) and left["h"][:, 1:].dtype == "float32"
        assert [*left.batches(2, shuffle=True)] == []
        assert make()["h"].shape == (2, 3)
        assert zarr.open_group(str(tmp_path), mode="r")["values/h"].shape == (2, 3)


def test_killed_after_the_last_batch(tmp_path, monkeypatch):
    make = lambda: store.harvest(lambda x: sonde.sow(x, "h"), [np.ones((2, 3))], tmp_path, progress=False)
    with monkeypatch.context() as patch:
        patch.setattr(writing.Writer, "finish", lambda writer: None)
        assert not make().finished
    assert make().finished
    assert store.check(tmp_path) == []


def test_an_error_in_the_program_keeps_the_batches_before(tmp_path):
    def batches(n):
        for i in range(n):
            yield np.full((2, 3), i, np.float32)
        raise RuntimeError("the disk with the data is gone")

    with pytest.raises(RuntimeError, match="data is gone"):
        store.harvest(lambda x: sonde.sow(x, "h"), batches(3), tmp_path, progress=False)
    kept = store.open(tmp_path)
    assert kept.n_batches == 3 and not kept.finished and kept["h"].shape == (6, 3)
    whole = [np.full((2, 3), i, np.float32) for i in range(5)]
    kept = store.harvest(lambda x: sonde.sow(x, "h"), whole, tmp_path, progress=False)
    np.testing.assert_array_equal(kept["h"][:], np.concatenate(whole))


def test_a_finished_store_goes_on_with_more_batches(tmp_path):
    whole = [np.full((2, 3), i, np.float32) for i in range(5)]
    for n in (2, 2, 5):
        kept = store.harvest(lambda x: sonde.sow(x * 2, "h"), whole[:n], tmp_path, progress=False)
        np.testing.assert_array_equal(kept["h"][:], 2 * np.concatenate(whole[:n]))


FULL = """
import resource, signal, sys
import numpy as np
import sonde
from sonde import store

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
batches = [np.random.default_rng(i).standard_normal((64, 64)).astype(np.float32) for i in range(3)]
store.harvest(lambda x: sonde.sow(x, "h"), batches[:1], sys.argv[1], progress=False)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # what a full disk does to a write
try:
    store.harvest(lambda x: sonde.sow(x, "h"), batches, sys.argv[1], progress=False)
except sonde.errors.StoreError as error:
    print(error)
"""


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path):
    program = tmp_path / "full.py"
    program.write_text(FULL)
    folder = tmp_path / "store"
    done = subprocess.run([sys.executable, str(program), str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"cannot write to the store {str(folder)!r}")
    assert store.check(folder) == []
    first = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    np.testing.assert_array_equal(store.open(folder)["h"][:], first)


def test_a_writer_that_fails_stops_the_program(tmp_path):
    def batches():
        for i in range(10_000):
            if i == 3:
                (tmp_path / "values").rename(tmp_path / "gone")
                (tmp_path / "values").write_text("in the way")
            yield np.full((2, 3), i, np.float32)

    with pytest.raises(StoreError, match="cannot write"):
        store.harvest(lambda x: sonde.sow(x, "h"), batches(), tmp_path, progress=False, memory=200)


def test_another_version_of_the_format_is_named(tmp_path):
    store.harvest(lambda x: sonde.sow(x, "h"), [jnp.ones(2)], tmp_path, progress=False)
    manifest = tmp_path / "sonde.json"
    for other in ({"format": "sonde.store", "version": 1, "arrays": []}, {"format": "sonde.store", "version": 7}):
        manifest.write_bytes(json.dumps(other).encode() if other["version"] == 1 else seal(other))
        with pytest.raises(StoreError, match=f"is a store of version {other['version']}"):
            store.open(tmp_path)
    manifest.write_text("{}")
    with pytest.raises(StoreError, match=r"sonde\.json of the store .* is damaged"):
        store.open(tmp_path)


def test_two_harvests_at_once(tmp_path, monkeypatch):
    """The one that began first ends if the other one begins to write, and the other one if the first has written."""
    monkeypatch.setattr(writing, "SECONDS", 0.0)
    batches = [np.full((2, 3), i, np.float32) for i in range(40)]
    make = lambda drawn: store.harvest(lambda x: sonde.sow(x, "h"), drawn, tmp_path, progress=False)

    def overtaken():
        for i, batch in enumerate(batches):
            if i == 10:
                while store.open(tmp_path).n_batches < 10:
                    time.sleep(0.01)
                assert make(batches[:20]).n_batches == 20
            yield batch

    with pytest.raises(StoreError, match="another harvest has begun to write to the store"):
        make(overtaken())
    kept = store.open(tmp_path)
    np.testing.assert_array_equal(kept["h"][:, 0], np.repeat(np.arange(20), 2))

    def late():
        for i, batch in enumerate(batches):
            if i == 15:  # this harvest has looked and skips what it has seen; the other one goes on meanwhile
                make(batches[:30])
            yield batch

    with pytest.raises(StoreError, match="another harvest has begun to write to the store"):
        make(late())
    np.testing.assert_array_equal(make(batches)["h"][:, 0], np.repeat(np.arange(40), 2))
    assert store.check(tmp_path) == []


def test_a_loader_that_reuses_its_memory(tmp_path):
    memory = np.zeros((64, 1024), np.float32)

    def batches():
        for i in range(20):
            memory[:] = i
            yield memory

    kept = store.harvest(lambda x: sonde.sow(x, "h"), batches(), tmp_path, progress=False)
    np.testing.assert_array_equal(kept["h"][:], np.repeat(np.arange(20), 64)[:, None] * np.ones((1, 1024)))


LEAVING = """
import signal, sys, time
import numpy as np
import sonde
from sonde import store

drawn = open(sys.argv[1] + ".drawn", "ab", buffering=0)
if sys.argv[2] == "own":
    signal.signal(signal.SIGTERM, lambda *_: print("own handler", flush=True))


def batches():
    for i in range(1000):
        yield np.full((2, 3), i, np.float32)
        drawn.write(b".")  # this batch is on its way to the store
        time.sleep(0.02 if i < 20 or sys.argv[2] != "stuck" else 100)


kept = store.harvest(lambda x: sonde.sow(x, "h"), batches(), sys.argv[1], progress=False)
print("unfinished" if not kept.finished and kept.n_batches < 1000 else "finished", flush=True)
"""


@pytest.mark.every(3)
@pytest.mark.parametrize("kind", ["plain", "stuck", "own"])
def test_sigterm_writes_what_is_computed_and_leaves(tmp_path, kind):
    program, folder = tmp_path / "program.py", tmp_path / "store"
    program.write_text(LEAVING)
    environment = {**os.environ, "XLA_FLAGS": xla_flags(1), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(program), str(folder), kind]
    drawn = tmp_path / "store.drawn"
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        while not drawn.exists() or drawn.stat().st_size < 21:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)  # nothing was written yet: batches wait up to ten seconds for others
        if kind == "stuck":  # in the middle of its data: what is computed is in the store, although it cannot leave
            end = time.monotonic() + 30
            while store.open(folder).n_batches < 21:
                assert time.monotonic() < end
                time.sleep(0.1)
            process.kill()
        said = process.communicate(timeout=60)[0]
    assert process.returncode == {"plain": -signal.SIGTERM, "stuck": -signal.SIGKILL, "own": 0}[kind]
    assert said == ("own handler\nunfinished\n" if kind == "own" else "")
    kept = store.open(folder)
    assert 21 <= kept.n_batches and kept.n_batches - drawn.stat().st_size in (0, 1) and not kept.finished
    assert store.check(folder) == []
    np.testing.assert_array_equal(kept["h"][:, 0], np.repeat(np.arange(kept.n_batches), 2))


def test_a_folder_that_is_removed_during_a_harvest(tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "SECONDS", 0.0)

    def batches():
        for i in range(1000):
            if i == 5:
                (tmp_path / "store").rename(tmp_path / "elsewhere")
            yield np.full((2, 3), i, np.float32)
            time.sleep(0.01 if i < 50 else 0.1)

    with pytest.raises(StoreError, match="its folder was removed or renamed"):
        store.harvest(lambda x: sonde.sow(x, "h"), batches(), tmp_path / "store", progress=False)
    assert store.check(tmp_path / "elsewhere") == []


def test_an_interrupted_harvest_does_not_write_any_more(tmp_path):
    """Ctrl+C in a notebook, and the cell again."""
    batches = [np.full((64, 64), i, np.float32) for i in range(20)]
    for moment in np.linspace(0, 0.2, 8):
        timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            store.harvest(lambda x: sonde.sow(x, "h"), batches, tmp_path / str(moment), progress=False)
            timer.join()
            time.sleep(1)
        except KeyboardInterrupt:
            pass
        kept = store.harvest(lambda x: sonde.sow(x, "h"), batches, tmp_path / str(moment), progress=False)
        np.testing.assert_array_equal(kept["h"][:], np.concatenate(batches))
