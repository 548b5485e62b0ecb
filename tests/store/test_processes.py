"""Several processes (`jax.distributed`) write one store."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tests.processes import HEAD, run, start

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


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    return {f"{a.kind}/{a.path}": a[:] for a in store.open(folder).arrays}


@pytest.mark.thorough
@pytest.mark.parametrize(("count", "kills"), [(2, 20), (4, 5)])
def test_one_process_is_killed_and_all_start_again(tmp_path, count, kills):
    program, batches = tmp_path / "program.py", "40"
    program.write_text(HEAD + HARVEST)

    def make(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    undisturbed, folder, number = make("undisturbed"), make("killed0"), 0
    run(program, count, str(undisturbed), batches)
    _check(undisturbed, int(batches))
    whole = {kind: _arrays(undisturbed / kind) for kind in ("plain", "kept")}
    rng, begun = random.Random(count), 0
    for _ in range(kills):
        drawn, moment = folder / "drawn0", rng.randrange(2 * int(batches))  # of the batches of two harvests
        drawn.unlink(missing_ok=True)
        processes = start(program, count, str(folder), batches)
        while not drawn.exists() or drawn.stat().st_size < moment:
            assert not any(process.poll() for process in processes)
            time.sleep(0.01)
        time.sleep(rng.uniform(0, 0.2))
        processes[rng.randrange(count)].send_signal(signal.SIGKILL)
        for process in processes:  # a cluster's manager ends a job of which one process died
            process.kill()
            process.wait(60)
        for kind, arrays in whole.items():
            if (folder / kind / "sonde.json").exists():
                assert store.check(folder / kind) == []
                for name, array in _arrays(folder / kind).items():  # what is listed is there, and right
                    begun += 0 < len(array) < len(arrays[name])
                    assert array.tobytes() == arrays[name][: len(array)].tobytes()
        if (folder / "kept" / "sonde.json").exists() and store.open(folder / "kept").finished:
            number += 1
            folder = make(f"killed{number}")
    assert begun  # some kills hit a store in the middle
    run(program, count, str(folder), batches)
    for kind, arrays in whole.items():
        resumed = _arrays(folder / kind)
        assert resumed.keys() == arrays.keys() and store.open(folder / kind).finished
        for name, array in resumed.items():
            assert array.tobytes() == arrays[name].tobytes()
