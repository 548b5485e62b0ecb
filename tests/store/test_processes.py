"""Several processes (`jax.distributed`) write one store."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tests.processes import HEAD, SECONDS, free_port, run
from tests.store.bucket import bucket
from tests.store.forks import forks, kill

from sonde import store

HARVEST = """
from sonde.store.format import zarr_arrays
from sonde.store.writing import writer as writing

zarr_arrays.FILE_BYTES = 1 << 12
W = np.random.default_rng(9).standard_normal((4, 6)).astype(np.float32)
w = put(W, None, "model")


def f(x, tokens):
    sonde.sow(x.sum(0), "replicated")
    h = sonde.sow(jnp.sin(x) @ w, "h")  # rows over processes, columns over devices
    return sonde.sow(jax.lax.with_sharding_constraint(h.T, NamedSharding(mesh, P("data", None))).T, "other")


def batches():
    for i in range(int(sys.argv[5])):
        with open(f"{folder}/drawn{index}", "ab") as drawn:
            drawn.write(b".")
        rng = np.random.default_rng(i)
        yield (
            put(rng.standard_normal((8, 12, 4)).astype(np.float32).reshape(96, 4), "data"),
            put(rng.integers(0, 3, 96), "data"),
        )


options = dict(progress=False)
store.harvest(f, batches(), folder + "/plain", **options)
options |= dict(dtype="float16", keep=lambda x, t: t != 0, keys=lambda x, t: {"t": t})
store.harvest(f, batches(), folder + "/kept", "h", **options)
"""


def _expected(n: int) -> dict[str, np.ndarray]:
    rngs = [np.random.default_rng(i) for i in range(n)]
    drawn = [(r.standard_normal((8, 12, 4)).astype(np.float32).reshape(96, 4), r.integers(0, 3, 96)) for r in rngs]
    x, tokens = (np.concatenate(part) for part in zip(*drawn))
    w = np.random.default_rng(9).standard_normal((4, 6)).astype(np.float32)
    return {"x": x, "tokens": tokens, "h": np.sin(x) @ w, "sums": np.concatenate([d[0].sum(0) for d in drawn])}


def _check(folder: Path, n: int) -> None:
    expected = _expected(n)
    plain, kept = store.open(folder / "plain"), store.open(folder / "kept")
    np.testing.assert_allclose(plain["h"][:], expected["h"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(plain["other"][:], expected["h"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(plain["replicated"][:], expected["sums"], rtol=1e-5, atol=1e-5)
    chosen = expected["tokens"] != 0
    np.testing.assert_array_equal(kept.row_keys["t"][:], expected["tokens"][chosen])
    np.testing.assert_allclose(kept["h"][:], expected["h"][chosen], rtol=1e-2, atol=1e-2)
    assert store.check(folder / "plain") == [] == store.check(folder / "kept")
    assert plain.finished and kept.finished


FAILING = """
try:
    store.harvest(f, batches(), f"{folder}/apart{index}", progress=False)
except sonde.errors.StoreError as error:
    said = [str(error)]

if index == 1:  # its disk is full

    def full(self, job):
        raise OSError("no space left")

    writing.Writer._stage = full
try:
    store.harvest(f, (batch for _ in range(1000) for batch in batches()), folder + "/full", progress=False)
except sonde.errors.StoreError as error:
    said += [str(error)]
open(f"{folder}/said{index}", "w").write("\\n".join(said))
"""


def test_two_processes_write_one_store(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(HEAD + HARVEST + FAILING)
    run(program, 2, str(tmp_path), "4")
    _check(tmp_path, 4)
    said = [(tmp_path / f"said{i}").read_text().splitlines() for i in range(2)]
    assert "give a folder that all share" in said[0][0] and "give a folder that all share" in said[1][0]
    assert "process 1 failed: StoreError: cannot write to the store" in said[0][1]
    assert said[1][1] == f"cannot write to the store {str(tmp_path / 'full')!r}: no space left"


@pytest.mark.every(2)
def test_another_number_of_processes_continues(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(HEAD + HARVEST)
    for count, batches in ((2, "3"), (1, "5"), (2, "6")):
        run(program, count, str(tmp_path), batches)
        _check(tmp_path, int(batches))


@pytest.mark.thorough
def test_four_processes_write_one_store(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(HEAD + HARVEST)
    run(program, 4, str(tmp_path), "5")
    _check(tmp_path, 5)


SHARED = """
from sonde.store.format import zarr_arrays
from sonde.store.writing import writer

zarr_arrays.FILE_BYTES, writer.SECONDS = 1 << 12, 0.0
options = dict(keep=lambda x, t: t != 0, keys=lambda x, t: {"t": t}, progress=False)


def batches():
    for i in range(6):
        rng = np.random.default_rng(i)
        x, tokens = rng.standard_normal((8, 12, 4)).astype(np.float32).reshape(96, 4), rng.integers(0, 3, 96)
        yield put(x, "data", "model"), put(tokens, "data")


store.harvest(lambda x, t: sonde.sow(jnp.sin(x), "h"), batches(), folder, **options)
"""


@pytest.mark.thorough
def test_two_processes_write_into_the_same_objects_of_a_bucket(tmp_path, monkeypatch):
    """Rows of both are in each object, and each process has other columns of them on each of its devices."""
    program = tmp_path / "program.py"
    program.write_text(HEAD + SHARED)
    with bucket() as server:
        for name, value in {"ENDPOINT_URL": server.url, "ACCESS_KEY_ID": "name", "SECRET_ACCESS_KEY": "word"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        run(program, 2, "s3://acts/run")
        expected, kept = _expected(6), store.open("s3://acts/run")
        chosen = expected["tokens"] != 0
        np.testing.assert_array_equal(kept.row_keys["t"][:], expected["tokens"][chosen])
        np.testing.assert_allclose(kept["h"][:], np.sin(expected["x"])[chosen], rtol=1e-5, atol=1e-6)
        assert store.check("s3://acts/run") == [] and kept.finished


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    return {f"{a.kind}/{a.path}": a[:] for a in store.open(folder).arrays}


KILLED = """
os.environ["JAX_CPU_COLLECTIVES_IMPLEMENTATION"] = "gloo"


def main(index, count, port, folder, kind):
    jax.distributed.initialize(f"127.0.0.1:{port}", int(count), index)
    from sonde.store.format import zarr_arrays
    from sonde.store.writing import writer

    zarr_arrays.FILE_BYTES, writer.SECONDS = 1 << 12, 0.0
    P, axes = jax.sharding.PartitionSpec, (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((int(count), jax.local_device_count()), ("data", "model"), axis_types=axes)

    def put(array, *spec):
        return jax.make_array_from_callback(
            array.shape, jax.sharding.NamedSharding(mesh, P(*spec)), lambda index: array[index]
        )

    w = put(np.random.default_rng(9).standard_normal((4, 6)).astype(np.float32), None, "model")

    def f(x, tokens):
        return sonde.sow(jnp.sin(x) @ w, "h")

    def batches():
        for i in range(60):
            rng = np.random.default_rng(i)
            x, tokens = rng.standard_normal((96, 4)).astype(np.float32), rng.integers(0, 3, 96)
            yield put(x, "data"), put(tokens, "data")

    kept = {"keep": lambda x, tokens: tokens != 0} if kind == "kept" else {}
    store.harvest(f, batches(), folder, keys=lambda x, t: {"t": t}, dtype="float16", progress=False, **kept)
"""


def _kill_one_of(count: int, kills: int, kind: str, tmp_path: Path) -> None:
    """Kills one process of a harvest that has listed something, then the others, and starts all again."""
    rng, folder = random.Random(count), tmp_path / "killed"
    with forks(KILLED, devices=2) as processes:
        run_all = lambda where: processes.start(count, count, free_port(), where, kind)
        run_all(tmp_path / "undisturbed")
        assert processes.ends() == [0] * count
        whole = _arrays(tmp_path / "undisturbed")
        while kills:
            n_batches = lambda: store.open(folder).n_batches if (folder / "sonde.json").exists() else 0
            moment, end = min(n_batches() + rng.randint(1, 12), 60), time.monotonic() + SECONDS
            started = run_all(folder)
            while n_batches() < moment:
                assert time.monotonic() < end
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.1))
            kill(rng.choice(started))
            time.sleep(rng.uniform(0, 0.05))
            for process in started:  # a cluster's manager ends a job of which one process died
                kill(process)
            kills -= -signal.SIGKILL in processes.ends()
            assert store.check(folder) == []
            for name, array in _arrays(folder).items():  # what is listed is there, and right
                assert array.tobytes() == whole[name][: len(array)].tobytes()
            if store.open(folder).finished or not kills:
                run_all(folder)
                assert processes.ends() == [0] * count and store.open(folder).finished
                resumed = _arrays(folder)
                assert {name: array.tobytes() for name, array in resumed.items()} == {
                    name: array.tobytes() for name, array in whole.items()
                }
                shutil.rmtree(folder)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["plain", "kept"])
@pytest.mark.parametrize("count", [2, 4])
def test_one_process_is_killed_and_all_start_again(tmp_path, count, kind):
    _kill_one_of(count, 50, kind, tmp_path)


@pytest.mark.thorough
def test_of_eight_processes_one_dies_and_four_continue(tmp_path):
    with forks(KILLED) as processes:
        start = lambda count, where: processes.start(count, count, free_port(), where, "plain")
        start(1, tmp_path / "alone")
        assert processes.ends() == [0]
        started = start(8, tmp_path / "store")
        end = time.monotonic() + SECONDS
        while not (tmp_path / "store" / "sonde.json").exists() or store.open(tmp_path / "store").n_batches < 6:
            assert time.monotonic() < end
            time.sleep(0.01)
        kill(started[5])
        assert 0 not in processes.ends()  # JAX ends the others
        assert store.check(tmp_path / "store") == [] and not store.open(tmp_path / "store").finished
        start(4, tmp_path / "store")
        assert processes.ends() == [0] * 4
        alone, resumed = _arrays(tmp_path / "alone"), _arrays(tmp_path / "store")
        assert alone.keys() == resumed.keys()
        assert all(array.tobytes() == resumed[name].tobytes() for name, array in alone.items())
