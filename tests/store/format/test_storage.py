"""Stores in buckets, on a small S3 server: reached by options or the environment, and errors come in time."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.processes import xla_flags
from tests.store.bucket import Bucket, bucket

import sonde
from sonde import store
from sonde.errors import StoreError

XS = [np.random.default_rng(i).standard_normal((8, 6)).astype(np.float32) for i in range(6)]
EXPECTED = 2 * np.concatenate(XS)


def double(x):
    return sonde.sow(x * 2, "a/h")


def harvest(storage: store.Storage | None, batches=XS) -> store.Store:
    return store.harvest(double, batches, "s3://acts/run", progress=False, storage=storage)


@pytest.fixture
def server(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with bucket() as running:
        yield running


@pytest.fixture
def storage(server) -> store.Storage:
    return store.Storage(endpoint_url=server.url, key="name", secret="word", retries=5, deadline=20)


def test_harvest_continue_read_check_and_merge(server: Bucket, storage):
    assert harvest(storage, XS[:4]).n_batches == 4
    kept = harvest(storage)
    np.testing.assert_array_equal(kept["a/h"][:], EXPECTED)
    np.testing.assert_array_equal(np.concatenate([b["a/h"] for b in kept.batches(8)]), EXPECTED)
    assert store.check("s3://acts/run", storage=storage) == []
    both = store.merge(["s3://acts/run", "s3://acts/run"], "s3://acts/both", storage=storage)
    np.testing.assert_array_equal(both["a/h"][48:], EXPECTED)
    (data,) = [name for name in server.objects if name.startswith("/acts/run/values/a.h/c/")]
    server.objects.pop(data)
    with pytest.raises(StoreError, match="is missing"):
        store.open("s3://acts/run", storage=storage)["a/h"][:]
    assert store.check("s3://acts/run", storage=storage)


def test_the_environment_says_where(server: Bucket, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "name")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "word")
    harvest(None)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    file = tmp_path / "credentials"
    file.write_text("[work]\naws_access_key_id = name\naws_secret_access_key = word\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "work")
    np.testing.assert_array_equal(store.open("s3://acts/run")["a/h"][:], EXPECTED)
    anonymous = store.Storage(anonymous=True)
    np.testing.assert_array_equal(store.open("s3://acts/run", storage=anonymous)["a/h"][:], EXPECTED)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")  # more specific
    with pytest.raises(StoreError, match=r"cannot read sonde.json of the store 's3://acts/run': .*connect"):
        store.open("s3://acts/run", storage=store.Storage(retries=0))


def test_a_busy_server_is_asked_again(server: Bucket, storage):
    server.busy = 3
    harvest(storage)
    server.busy = 3
    np.testing.assert_array_equal(store.open("s3://acts/run", storage=storage)["a/h"][:], EXPECTED)


def test_a_server_that_does_not_answer_is_an_error_in_time(server: Bucket, storage):
    harvest(storage)
    server.seconds = 4
    start = time.monotonic()
    with pytest.raises(StoreError, match="did not answer within 1 seconds"):
        store.open("s3://acts/run", storage=store.Storage(endpoint_url=server.url, anonymous=True, deadline=1))
    assert time.monotonic() - start < 3


@pytest.mark.parametrize("trouble", ["busy", "denies"])
def test_trouble_in_the_middle_keeps_what_is_there(server: Bucket, trouble):
    storage = store.Storage(endpoint_url=server.url, anonymous=True, retries=1, deadline=20)

    def batches():
        for i, x in enumerate(XS):
            if i == 4:
                setattr(server, trouble, 10_000)
            yield x

    harvest(storage, XS[:2])
    said = {"busy": "SlowDown|503|retry", "denies": "403|PERMISSION_DENIED|ExpiredToken"}[trouble]
    with pytest.raises(StoreError, match=f"cannot (write to|read .* of) the store 's3://acts/run': .*({said})"):
        harvest(storage, batches())
    setattr(server, trouble, 0)
    kept = store.open("s3://acts/run", storage=storage)
    assert kept.n_batches == 2 and store.check("s3://acts/run", storage=storage) == []
    np.testing.assert_array_equal(kept["a/h"][:], EXPECTED[:16])
    np.testing.assert_array_equal(harvest(storage)["a/h"][:], EXPECTED)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("foo://x", "has the scheme 'foo', which is not known; give a path or one of file://, s3://"),
        ("s3://", "names no bucket"),
        ("s3:///x", "names no bucket"),
        ("gs://", "names no bucket"),
        ("://x", "has the scheme ''"),
        ("s3:/acts/run", r"is no URL: write s3://, or \./s3:/acts/run for a folder"),
        ("gs:acts", "is no URL: write gs://"),
        ("s3\0", "cannot be the name of a folder"),
    ],
)
def test_addresses_that_are_none(address, said):
    for use in (store.open, store.check, lambda where: store.harvest(double, XS, where, progress=False)):
        with pytest.raises(StoreError, match=said):
            use(address)


def test_storage_that_cannot_be():
    with pytest.raises(ValueError, match="go together"):
        store.Storage(key="name")
    with pytest.raises(ValueError, match="deadline positive"):
        store.Storage(deadline=0)
    assert "word" not in repr(store.Storage(key="name", secret="word"))


PROGRAM = """
import sys
import numpy as np
import sonde
from sonde import store
from sonde.store.format import zarr_arrays
from sonde.store.writing import writer as writing

zarr_arrays.FILE_BYTES = 1 << 9
writing.SECONDS = 0.01


def batches():
    for i in range(60):
        yield np.random.default_rng(i).standard_normal((8, 6)).astype(np.float32)


print("go", flush=True)
store.harvest(lambda x: sonde.sow(x * 2, "h"), batches(), "s3://acts/killed", progress=False)
"""


@pytest.mark.every(2)
def test_killed_while_writing_to_a_bucket(server: Bucket, tmp_path):
    kills, program = 2, tmp_path / "program.py"
    program.write_text(PROGRAM)
    expected = 2 * np.concatenate(
        [np.random.default_rng(i).standard_normal((8, 6)).astype(np.float32) for i in range(60)]
    )
    storage = store.Storage(endpoint_url=server.url, anonymous=True)
    environment = {
        **os.environ,
        "XLA_FLAGS": xla_flags(1),
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": "name",
        "AWS_SECRET_ACCESS_KEY": "word",
    }
    begun, rng = 0, np.random.default_rng(0)
    for kill in range(kills + 1):
        process = subprocess.Popen([sys.executable, str(program)], env=environment, stdout=subprocess.DEVNULL)
        moment = server.written + rng.integers(1, 40)
        while kill < kills and server.written < moment and process.poll() is None:
            time.sleep(0.001)
        if kill < kills:
            process.kill()
        assert process.wait(120) in (0, -9)
        if "/acts/killed/sonde.json" not in server.objects:
            continue
        kept = store.open("s3://acts/killed", storage=storage)
        assert store.check("s3://acts/killed", storage=storage) == []
        np.testing.assert_array_equal(kept["h"][:], expected[: len(kept["h"])])
        begun += 0 < len(kept["h"]) < len(expected)
        if kept.finished and kill < kills:
            for name in [name for name in server.objects if name.startswith("/acts/killed/")]:
                server.objects.pop(name)
    assert begun and kept.finished
    np.testing.assert_array_equal(kept["h"][:], expected)
