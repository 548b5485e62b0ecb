"""A stored array is indexed like NumPy's; checks find damage; stores can be merged; minibatches are fair."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import threading

import jax
import numpy as np
import pytest
from rich.console import Console

import sonde
from sonde import store
from sonde.errors import NoSuchSiteError, StoreError

ARRAY = np.random.default_rng(0).standard_normal((50, 4, 6)).astype(np.float32)


def make(folder, array=ARRAY, parts=5):
    batches = np.split(array, parts)
    numbers = np.split(np.arange(len(array)), parts)
    run = lambda x, n: sonde.sow(x, "a/h")
    return store.harvest(run, list(zip(batches, numbers)), folder, keys=lambda x, n: {"n": n}, progress=False)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return make(tmp_path_factory.mktemp("kept"))


@pytest.mark.parametrize(
    "index",
    [
        3,
        -1,
        slice(None),
        slice(5, 12),
        slice(-7, None),
        slice(40, 3, -3),
        slice(10, 10),
        slice(None, None, -1),
        (slice(2, 9), 1),
        (..., -1),
        (slice(3, 5), ..., slice(None, None, 2)),
        [4, 4, -2],
        np.arange(50) % 7 == 0,
        (slice(0, 3), [1, 3]),
        (0, 0, 0),
        (slice(0, 9), [1, 3], 2),
        (2, [1, 3]),
    ],
)
def test_indexing(kept, index):
    np.testing.assert_array_equal(kept["a/h"][index], ARRAY[index])


@pytest.mark.parametrize("index", [50, -51, (0, 0, 0, 0), "a", 1.5, [[0]], ([0, 1], [1, 2]), (0, slice(2), [1])])
def test_indices_that_do_not_fit(kept, index):
    with pytest.raises(IndexError):
        kept["a/h"][index]


def test_an_array_of_a_store_is_an_array(kept):
    stored = kept["a/h"]
    assert (stored.shape, stored.dtype, stored.ndim, stored.nbytes, len(stored)) == (
        ARRAY.shape,
        ARRAY.dtype,
        3,
        ARRAY.nbytes,
        50,
    )
    np.testing.assert_array_equal(np.asarray(stored), ARRAY)
    np.testing.assert_array_equal(np.stack(list(stored)), ARRAY)
    assert "float32[50,4,6]" in repr(kept)


def test_a_path_that_is_not_there_names_the_nearest(kept):
    with pytest.raises(KeyError, match="nearest: 'a/h'"):
        kept["a/g"]
    with pytest.raises(NoSuchSiteError):
        kept.batches(3, "b/*")


def test_the_contents_are_a_tree_and_no_path_is_cut(kept):
    text = kept._repr_html_()
    console = Console(width=30, file=io.StringIO(), record=True)
    console.print(kept)
    for path in {array.path for array in kept.arrays}:
        assert path in console.export_text(clear=False) and path in re.sub("<[^>]*>", "", text)
    assert f"{kept.n_batches} batches" in text


def test_no_store(tmp_path):
    with pytest.raises(StoreError, match="there is no store"):
        store.open(tmp_path)
    with pytest.raises(StoreError, match="there is no store"):
        store.open(tmp_path / "missing")


# -- minibatches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"seed": 3, "window": 16}, {"seed": 0, "window": 7}])
def test_an_epoch_has_every_row_once(kept, options):
    batches = list(kept.batches(5, shuffle="seed" in options, **options))
    numbers = np.concatenate([b["keys/n"] for b in batches])
    assert sorted(numbers) == list(range(50))
    assert (list(numbers) != list(range(50))) == ("seed" in options)
    np.testing.assert_array_equal(np.concatenate([b["a/h"] for b in batches]), ARRAY[numbers])


def test_rows_of_positions(kept):
    batches = list(kept.batches(10, "a/*", row_axes=1))
    assert batches[0]["a/h"].shape == (10, 4, 6)
    flat = store.open(kept.folder)
    flat.row_keys._found.clear()  # the keys have one axis
    batches = list(flat.batches(20, row_axes=2, shuffle=True, seed=1))
    rows = np.concatenate([b["a/h"] for b in batches])
    assert rows.shape == (200, 6)
    np.testing.assert_array_equal(np.sort(rows, axis=0), np.sort(ARRAY.reshape(200, 6), axis=0))


def test_the_seed_decides_and_epochs_differ(kept):
    def numbers(seed, epochs=1):
        drawn = [b["keys/n"] for b in kept.batches(5, shuffle=True, seed=seed, window=20, epochs=epochs)]
        return np.concatenate(drawn).tolist()

    assert numbers(1) == numbers(1) != numbers(2)
    twice = numbers(1, 2)
    assert twice[:50] == numbers(1) and sorted(twice[50:]) == list(range(50)) and twice[50:] != twice[:50]


def test_going_on_from_a_state(kept):
    whole = [b["keys/n"].tolist() for b in kept.batches(4, shuffle=True, seed=5, window=9, epochs=2)]
    for stop in (1, 7, 12, 15):
        iterator = kept.batches(4, shuffle=True, seed=5, window=9, epochs=2)
        for _ in range(stop):
            next(iterator)
        other = kept.batches(4, shuffle=True, seed=5, window=9, epochs=2)
        other.set_state(iterator.get_state())
        assert [b["keys/n"].tolist() for b in other] == whole[stop:]


@pytest.mark.parametrize(
    "change", [{"size": 5}, {"seed": 6}, {"shuffle": False}, {"window": 30}, {"process": 1, "processes": 2}]
)
def test_the_state_of_another_iterator_is_refused(kept, change):
    options = {"size": 4, "shuffle": True, "seed": 5, "window": 9}
    state = kept.batches(**options).get_state()
    with pytest.raises(ValueError, match="its rows come in another order"):
        kept.batches(**options | change).set_state(state)
    for odd in ({}, {"epoch": 0, "batch": 1}, {**state, "batch": -1}, {**state, "batch": "1"}):
        with pytest.raises(ValueError, match="takes what get_state returned"):
            kept.batches(**options).set_state(odd)


def test_the_state_of_an_iterator_over_another_store_is_refused(kept, tmp_path):
    state = kept.batches(4, shuffle=True, seed=5).get_state()
    with pytest.raises(ValueError, match="another store"):
        make(tmp_path).batches(4, shuffle=True, seed=5).set_state(state)


def test_processes_share_the_rows(kept):
    parts = [
        np.concatenate([b["keys/n"] for b in kept.batches(3, shuffle=True, seed=1, window=16, process=p, processes=2)])
        for p in range(2)
    ]
    assert len(parts[0]) == len(parts[1]) and not set(parts[0]) & set(parts[1])


def test_batches_that_cannot_be(kept):
    with pytest.raises(ValueError, match="size, row_axes, window and epochs must be at least 1"):
        kept.batches(0)
    assert list(kept.batches(51)) == []


# -- check and merge --------------------------------------------------------------------------------------------------


def test_check_finds_a_flipped_bit_and_a_missing_file(tmp_path):
    kept = make(tmp_path)
    assert store.check(tmp_path) == []
    (file,) = [p for p in (tmp_path / "values" / "a.h" / "c").rglob("*") if p.is_file()]
    good = file.read_bytes()
    start = good.index(ARRAY.tobytes())
    for at in range(0, start + ARRAY.nbytes, 29):  # what follows are zeros up to the end of a chunk
        file.write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        (damage,) = store.check(tmp_path)
        assert damage.name == "values/a/h" and damage.rows == (0, 50)
    file.write_bytes(good[: start + 10] + bytes([good[start + 10] ^ 1]) + good[start + 11 :])
    with pytest.raises(StoreError, match=r"cannot read values/a/h of the store .*are not what was written"):
        kept["a/h"][:]
    file.unlink()
    assert "is missing" in str(store.check(tmp_path)[0])
    (tmp_path / "values" / "a.h" / "zarr.json").unlink()
    assert "zarr.json is missing" in str(store.check(tmp_path)[0])
    file.write_bytes(good)
    np.testing.assert_array_equal(store.open(tmp_path)["a/h"][:], ARRAY)


def test_merge(tmp_path):
    make(tmp_path / "one", ARRAY[:20], 2)
    make(tmp_path / "two", ARRAY[20:], 3)
    merged = store.merge([tmp_path / "one", tmp_path / "two"], tmp_path / "both")
    np.testing.assert_array_equal(merged["a/h"][:], ARRAY)
    assert merged.n_batches == 5 and store.check(tmp_path / "both") == []
    with pytest.raises(StoreError, match="holds a store already"):
        store.merge([tmp_path / "one"], tmp_path / "two")
    make(tmp_path / "other", ARRAY[:, :2], 1)
    with pytest.raises(StoreError, match="hold different arrays: values/a/h"):
        store.merge([tmp_path / "one", tmp_path / "other"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_iterator_left_open_ends_quietly(tmp_path):
    program = f"""
import numpy as np
from sonde import store
store.harvest(lambda x: __import__("sonde").sow(x * 2, "h").sum(), [np.ones((4, 3))] * 5, {str(tmp_path / "s")!r})
left_open = store.open({str(tmp_path / "s")!r}).batches(4, shuffle=True)
next(left_open)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert "Exception" not in done.stderr


def test_threads_draw_from_one_iterator(kept):
    drawn, iterator = [], kept.batches(2, shuffle=True, epochs=40)
    threads = [threading.Thread(target=lambda: drawn.extend(batch["keys/n"] for batch in iterator)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (np.bincount(np.concatenate(drawn)) == 40).all()


FORK = """
import os, sys, traceback
from sonde import store
kept = store.open(sys.argv[1])
iterator = kept.batches(4)
next(iterator), kept["a/h"][0]
for use in (lambda: store.open(sys.argv[1]), lambda: next(iterator), lambda: print(kept["a/h"][:].shape, flush=True)):
    sys.stdout.flush()
    process = os.fork()
    if not process:
        try:
            use()
        except Exception as error:
            print(type(error).__name__, str(error).split(",")[0], flush=True)
        os._exit(0)
    os.waitpid(process, 0)
"""


def test_a_fork_of_a_process_that_read(kept):
    """TensorStore would abort it, and a minibatch would never come; rows on a disk need no threads."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, kept.folder], capture_output=True, text=True, timeout=60
    )
    refused = "StoreError this process was forked from one that has used a store"
    assert done.stdout.splitlines() == [refused, refused, str(kept["a/h"].shape)]


@pytest.mark.parametrize("place", ["device", "sharding"])
def test_minibatches_on_a_device(kept, place):
    device = jax.devices()[-1]
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    wanted = device if place == "device" else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    options = {"shuffle": True, "seed": 3, "epochs": 2}
    plain, placed = kept.batches(8, **options), kept.batches(8, device=wanted, **options)
    drawn = []
    for _ in range(5):
        drawn.append(next(placed))
        next(plain)
        assert placed.get_state() == plain.get_state()  # not of those that are on their way
    assert all(x.devices() == ({device} if place == "device" else set(mesh.devices.flat)) for x in drawn[0].values())
    again = kept.batches(8, device=wanted, **options)
    again.set_state(plain.get_state())
    for x, y, z in zip(plain, placed, again, strict=True):
        np.testing.assert_array_equal(x["a/h"], y["a/h"])
        np.testing.assert_array_equal(x["a/h"], z["a/h"])
