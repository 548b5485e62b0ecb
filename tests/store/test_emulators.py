"""Stores under what others wrote: moto's server for S3, gcp-storage-emulator for gs://, Ray's tasks, Grain.

They are in the dependency group `clusters`, which `make test-thorough` installs.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.processes import xla_flags
from tests.store.forks import forks, kill
from tests.store.slow_link import slow_link

import sonde
from sonde import store
from sonde.errors import StoreError

pytestmark = pytest.mark.thorough

XS = [np.random.default_rng(i).standard_normal((64, 96)).astype(np.float32) for i in range(6)]
EXPECTED = 2 * np.concatenate(XS)


def double(x):
    return sonde.sow(x * 2, "a/h")


@contextlib.contextmanager
def server(*command: str) -> Iterator[int]:
    """A server in a process of its own, on a free port, which is its last argument."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, *command, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 60
        while True:
            assert process.poll() is None and time.monotonic() < end
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def s3(monkeypatch) -> Iterator[int]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with server("-m", "moto.server", "-H", "127.0.0.1", "-p") as port:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/acts", method="PUT")
        urllib.request.urlopen(request).close()
        yield port


def use(url: str, storage: store.Storage | None) -> None:
    """Harvests, continues, reads, checks and merges, alone and with units."""
    harvest = lambda folder, batches, **options: store.harvest(
        double, batches, folder, progress=False, storage=storage, **options
    )
    assert harvest(url, XS[:4]).n_batches == 4
    kept = harvest(url, XS)
    np.testing.assert_array_equal(kept["a/h"][:], EXPECTED)
    np.testing.assert_array_equal(kept["a/h"][[300, 2, 77], 1:3], EXPECTED[[300, 2, 77], 1:3])
    assert kept.finished and store.check(url, storage=storage) == []
    elastic = harvest(f"{url}-units", XS, unit=2)
    np.testing.assert_array_equal(elastic["a/h"][:], EXPECTED)
    merged = store.merge([url, f"{url}-units"], f"{url}-merged", storage=storage)
    np.testing.assert_array_equal(merged["a/h"][len(EXPECTED) :], EXPECTED)
    with pytest.raises(StoreError, match="there is no store in"):
        store.open(f"{url}-nowhere", storage=storage)


def at(url: str, **options: object) -> store.Storage:
    return store.Storage(endpoint_url=url, key="name", secret="word", **options)


def test_s3(s3):
    use("s3://acts/run", at(f"http://127.0.0.1:{s3}"))
    with pytest.raises(StoreError, match="NoSuchBucket"):
        store.harvest(double, XS, "s3://nowhere/run", progress=False, storage=at(f"http://127.0.0.1:{s3}"))


KILLED = """
from sonde.store.format import zarr_arrays
from sonde.store.writing import writer

zarr_arrays.FILE_BYTES, writer.SECONDS = 1 << 10, 0.01


def batches():
    for i in range(300):
        yield np.random.default_rng(i).standard_normal((8, 6)).astype(np.float32)


def main(_, folder):
    store.harvest(lambda x: sonde.sow(x * 2, "h"), batches(), folder, progress=False)
"""


def test_killed_fifty_times_while_writing_to_s3(s3, monkeypatch):
    for name, value in {
        "ENDPOINT_URL": f"http://127.0.0.1:{s3}",
        "ACCESS_KEY_ID": "n",
        "SECRET_ACCESS_KEY": "w",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    expected = np.concatenate([np.random.default_rng(i).standard_normal((8, 6)).astype(np.float32) for i in range(300)])
    rng, kills, folder = random.Random(5), 0, "s3://acts/killed0"

    def n_batches() -> int:
        try:
            return store.open(folder).n_batches
        except StoreError:  # nothing is there yet
            return 0

    with forks(KILLED) as processes:
        while kills < 50:
            moment, end = min(n_batches() + rng.randint(1, 25), 300), time.monotonic() + 60
            (process,) = processes.start(1, folder)
            while n_batches() < moment:
                assert time.monotonic() < end
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.05))
            kill(process)
            kills += processes.ends() == [-signal.SIGKILL]
            kept = store.open(folder)
            assert store.check(folder) == []
            np.testing.assert_array_equal(kept["h"][:], 2 * expected[: len(kept["h"])])
            if kept.finished:
                folder = f"s3://acts/killed{kills}"
        processes.run(1, folder)
        assert store.open(folder).finished and store.check(folder) == []
        np.testing.assert_array_equal(store.open(folder)["h"][:], 2 * expected)


def test_a_slow_link_takes_time_and_a_stalled_one_is_an_error(s3):
    with slow_link(s3, 200_000) as link:
        storage = at(link.url, deadline=4, retries=2)
        np.testing.assert_array_equal(
            store.harvest(double, XS, "s3://acts/slow", progress=False, storage=storage)["a/h"][:], EXPECTED
        )

        def batches():
            for i, x in enumerate([*XS, *XS]):
                if i == 8:
                    link.rate = 0
                yield x

        start = time.monotonic()
        with pytest.raises(StoreError, match="did not answer within"):
            store.harvest(double, batches(), "s3://acts/slow", progress=False, storage=storage)
        assert time.monotonic() - start < 60
    kept = store.harvest(double, [*XS, *XS], "s3://acts/slow", progress=False, storage=at(f"http://127.0.0.1:{s3}"))
    np.testing.assert_array_equal(kept["a/h"][:], np.concatenate([EXPECTED, EXPECTED]))
    assert store.check("s3://acts/slow", storage=at(f"http://127.0.0.1:{s3}")) == []


GOOGLE = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.store.test_emulators import use
use("gs://acts/run", None)
"""


def test_google(tmp_path):
    with server(str(Path(__file__).with_name("gcs_server.py"))) as port:
        environment = {
            **os.environ,
            "XLA_FLAGS": xla_flags(1),
            "JAX_PLATFORMS": "cpu",
            "STORAGE_EMULATOR_HOST": f"127.0.0.1:{port}",
        }
        root = str(Path(__file__).parents[2])
        subprocess.run([sys.executable, "-c", GOOGLE, root], env=environment, check=True, timeout=300)


def test_a_process_reaches_one_address_of_google(monkeypatch):
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", "http://127.0.0.1:1")
    with pytest.raises(StoreError, match=r"reaches gs:// at http://127.0.0.1:1, so not at http://127.0.0.1:2"):
        store.open("gs://acts/run", storage=store.Storage(endpoint_url="127.0.0.1:2"))


CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"


def test_tasks_of_an_array_of_jobs_share_a_store(tmp_path):
    """As Slurm and Kubernetes start them: the same command several times."""
    environment = {**os.environ, "XLA_FLAGS": xla_flags(1), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(CLUSTER / "program.py"), str(tmp_path / "store")]
    tasks = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [task.wait(300) for task in tasks] == [0, 0, 0]
    kept = store.open(tmp_path / "store")
    assert kept.finished and kept.n_batches == 64 and store.check(tmp_path / "store") == []


def test_ray_starts_a_task_again_that_died(tmp_path):
    environment = {
        **os.environ,
        "XLA_FLAGS": xla_flags(1),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(CLUSTER.parents[1] / "src"),
    }
    command = [sys.executable, "-W", "ignore", str(CLUSTER / "ray_tasks.py"), str(tmp_path / "store")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert "each task saw it at its end: [64, 64, 64]" in done.stdout and "a task died: True" in done.stdout


def test_grain_gives_the_batches_and_reads_the_rows(tmp_path):
    environment = {**os.environ, "XLA_FLAGS": xla_flags(1), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", str(CLUSTER / "grain_input.py"), str(tmp_path / "store")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "64 batches, 2048 rows, all right: True\neach row once: True\n"
