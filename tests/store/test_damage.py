"""Whatever happens to the files of a store, a reader gets the numbers that were computed, or a StoreError."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import zarr
from tests.untrusted import groups, mutated, quickly

import sonde
from sonde import store
from sonde.errors import StoreError
from sonde.store.format import progress, zarr_arrays
from sonde.store.format.sealed import checksum, seal
from sonde.store.writing.program import BatchProgram

BATCHES = [np.random.default_rng(i).standard_normal((8, 6)).astype(np.float32) for i in range(6)]
BATCHES[2][:] = 0  # a missing chunk must not look like these


def program(x):
    h = sonde.sow(x * 2, "a/h")
    return sonde.sow(jnp.where(x > 0, x, 0), "relu"), h


def inputs(batches=BATCHES):
    numbers = np.arange(len(np.concatenate(batches)))
    return list(zip(batches, np.split(numbers, len(batches))))


def keys(x, n):
    return {"n": n}


def with_numbers(x, n):
    return program(x)


def harvest(folder: Path, batches=BATCHES) -> store.Store:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zarr_arrays, "FILE_BYTES", 2 * BATCHES[0].nbytes)  # several files for each array
        patch.setattr(zarr_arrays, "CHUNK_BYTES", BATCHES[0].nbytes // 2)
        patch.setattr(progress, "SEGMENT_BYTES", 300)  # and several segments
        return store.harvest(with_numbers, inputs(batches), folder, keys=keys, progress=False)


EXPECTED = {
    "values/a/h": 2 * np.concatenate(BATCHES),
    "values/relu": np.maximum(np.concatenate(BATCHES), 0),
    "keys/n": np.arange(48),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "store"
    kept = harvest(folder)
    assert len(list((folder / "values" / "a.h" / "c").rglob("0"))) > 2
    assert len(list((folder / "progress" / "segments").iterdir())) > 1
    assert {f"{a.kind}/{a.path}" for a in kept.arrays} == set(EXPECTED)
    return folder


# -- readers: each returns what it read, by the name of the array ------------------------------------------------------


def by_slices(folder: Path) -> dict[str, np.ndarray]:
    return {f"{a.kind}/{a.path}": a[:] for a in store.open(folder).arrays}


def by_rows(folder: Path) -> dict[str, np.ndarray]:
    arrays = store.open(folder).arrays
    return {f"{a.kind}/{a.path}": np.stack([a[i] for i in range(len(a))]) for a in arrays}


def by_lists(folder: Path) -> dict[str, np.ndarray]:
    arrays = store.open(folder).arrays
    backwards = {f"{a.kind}/{a.path}": a[np.arange(len(a))[::-1]] for a in arrays}
    return {name: array[::-1] for name, array in backwards.items()}


def by_columns(folder: Path) -> dict[str, np.ndarray]:
    arrays = store.open(folder).arrays
    parts = {f"{a.kind}/{a.path}": a for a in arrays}
    return {
        name: np.stack([a[:, i] for i in range(a.shape[1])], 1) if a.ndim > 1 else a[:] for name, a in parts.items()
    }


def by_minibatches(folder: Path, **options) -> dict[str, np.ndarray]:
    drawn = list(store.open(folder).batches(4, **options))
    joined = {name: np.concatenate([batch[name] for batch in drawn]) for name in drawn[0]} if drawn else {}
    order = np.argsort(joined["keys/n"]) if drawn else []
    return {name if name.startswith("keys") else f"values/{name}": x[order] for name, x in joined.items()}


def by_shuffled_minibatches(folder: Path) -> dict[str, np.ndarray]:
    return by_minibatches(folder, shuffle=True, window=16)


def by_merging(folder: Path) -> dict[str, np.ndarray]:
    into = folder.parent / "merged"
    shutil.rmtree(into, ignore_errors=True)
    store.merge([folder], into)
    return by_slices(into)


def by_continuing(folder: Path) -> dict[str, np.ndarray]:
    harvest(folder)
    return by_slices(folder)


READERS = [by_slices, by_rows, by_lists, by_columns, by_minibatches, by_shuffled_minibatches, by_merging, by_continuing]


# -- what happens to files ---------------------------------------------------------------------------------------------


def damages(file: Path, whole: Path) -> Iterator[tuple[str, Callable[[Path], object]]]:
    """What can happen to a file: names, and functions that do it to its copy."""
    data = file.read_bytes()
    yield "deleted", lambda copy: copy.unlink()
    for size in sorted({0, 1, len(data) // 2, len(data) - 1}):
        yield f"cut to {size}", lambda copy, size=size: copy.write_bytes(data[:size])
    yield "longer", lambda copy: copy.write_bytes(data + b"\0")
    yield "zeros", lambda copy: copy.write_bytes(bytes(len(data)))
    rng = random.Random(file.name)
    for at in sorted({0, len(data) - 1, *(rng.randrange(len(data)) for _ in range(3))}):
        changed = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        yield f"a bit of byte {at}", lambda copy, changed=changed: copy.write_bytes(changed)
    for other in sorted(whole.rglob("*")):
        if other.is_file() and other.read_bytes() != data and (other.suffix == file.suffix):
            contents = other.read_bytes()
            yield f"as {other.relative_to(whole)}", lambda copy, contents=contents: copy.write_bytes(contents)


def cases(whole: Path) -> list[tuple[Path, str, Callable[[Path], object]]]:
    files = [path for path in sorted(whole.rglob("*")) if path.is_file()]
    return [(file.relative_to(whole), said, do) for file in files for said, do in damages(file, whole)]


def _check(whole: Path, tmp_path: Path, chosen: list[tuple[Path, str, Callable[[Path], object]]], readers) -> None:
    folder = tmp_path / "damaged"
    for file, said, do in chosen:
        for read in readers:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(whole, folder)
            do(folder / file)
            try:
                arrays = read(folder)
            except StoreError:
                continue
            where = f"{file} {said}, {read.__name__}"
            assert arrays.keys() == EXPECTED.keys(), where
            for name, expected in EXPECTED.items():
                np.testing.assert_array_equal(arrays[name], expected, err_msg=f"{name}: {where}")


def test_every_reader_gets_the_right_numbers_or_an_error(whole, tmp_path):
    every = cases(whole)
    for i, read in enumerate(READERS):  # each reader has other cases; the thorough test has all
        _check(whole, tmp_path, every[i :: 4 * len(READERS)], [read])


@pytest.mark.thorough
@pytest.mark.parametrize("read", READERS)
def test_every_damage_with_every_reader(whole, tmp_path, read):
    _check(whole, tmp_path, cases(whole), [read])


def test_check_finds_every_damage(whole, tmp_path):
    assert store.check(whole) == []
    folder = tmp_path / "damaged"
    for file, said, do in cases(whole)[::3]:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        do(folder / file)
        try:
            if store.check(folder):
                continue
        except StoreError:
            continue
        # Nothing that a reader would notice: what follows the rows of a file.
        assert "c" in file.parts, f"{file} {said}"
        group = zarr.open_group(str(folder), mode="r")
        for name, array in by_slices(folder).items():
            np.testing.assert_array_equal(array, EXPECTED[name], err_msg=f"{file} {said}")
            np.testing.assert_array_equal(group[name.replace("a/h", "a.h")][:], EXPECTED[name])


@pytest.fixture(scope="module")
def elastic(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("elastic") / "store"
    store.harvest(with_numbers, inputs(), folder, keys=keys, unit=2)
    return folder


def repaired(folder: Path) -> None:
    store.repair(with_numbers, inputs(), folder, keys=keys)


@pytest.mark.parametrize("numbers", groups(8, 1000))
def test_odd_metadata_with_right_checksums(whole, elastic, tmp_path, numbers):
    """What another program may have written: an error of the store, or numbers that were computed."""
    folder = tmp_path / "odd"
    for seed in numbers:
        rng = random.Random(seed)
        source = rng.choice([whole, elastic])
        names = [file.relative_to(source) for file in sorted(source.rglob("*.json")) if file.name != "zarr.json"]
        name = rng.choice([name for name in names if name.name != "claim.json"])
        data = seal(mutated(json.loads((source / name).read_bytes())["contents"], rng))
        for read in (by_slices, by_rows, by_shuffled_minibatches, by_merging, store.check, by_continuing, repaired):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(source, folder)
            if name.parent.name == "segments":  # named by its checksum
                progress_file = folder / "progress" / "0" / "00000.json"
                told = progress_file.read_bytes().replace(name.stem.encode(), checksum(data).encode())
                progress_file.write_bytes(seal(json.loads(told)["contents"]))
                (folder / name).unlink()
                (folder / name).with_stem(checksum(data)).write_bytes(data)
            else:
                (folder / name).write_bytes(data)
            start = time.monotonic()
            arrays = None
            try:
                arrays = read(folder)
            except StoreError:
                pass
            except ValueError as error:  # as of a store whose sites do have different rows
                assert "do not have the same rows" in str(error)
            quickly(start)
            for path, array in (arrays if isinstance(arrays, dict) else {}).items():
                if path in EXPECTED:
                    np.testing.assert_array_equal(array, EXPECTED[path][: len(array)], err_msg=f"{seed} {name}")


def test_a_file_that_disappears_while_a_store_is_open(tmp_path):
    folder = tmp_path / "store"
    harvest(folder)
    kept = store.open(folder)
    batches = kept.batches(4, "a/h")
    shutil.rmtree(folder / "values" / "a.h" / "c")
    with pytest.raises(StoreError, match=r"cannot read values/a/h of the store .* is missing"):
        kept["a/h"][:]
    with pytest.raises(StoreError, match="cannot read values/a/h"):
        next(batches)


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "folder"])
def test_what_is_in_the_place_of_a_file_is_not_written(tmp_path, kind):
    folder, other = tmp_path / "store", tmp_path / "other"
    store.harvest(with_numbers, inputs()[:3], folder, keys=keys, progress=False)
    (file,) = [path for path in (folder / "values" / "relu" / "c").rglob("*") if path.is_file()]
    data = file.read_bytes()
    file.unlink()
    if kind == "link":
        other.write_bytes(data)
    if kind.startswith("link"):
        file.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    with pytest.raises(StoreError, match=f"cannot write to the store .*{file.name}: "):
        store.harvest(with_numbers, inputs(), folder, keys=keys, progress=False)
    assert other.read_bytes() == data if kind == "link" else not other.exists()


def test_without_verification_a_missing_file_is_still_an_error(whole, tmp_path):
    folder = tmp_path / "store"
    shutil.copytree(whole, folder)
    files = sorted(path for path in (folder / "values" / "a.h" / "c").rglob("*") if path.is_file())
    files[1].write_bytes(files[0].read_bytes())  # whole, but of other rows
    np.testing.assert_array_equal(store.open(folder, verify=False)["a/h"][:16], EXPECTED["values/a/h"][:16])
    store.open(folder, verify=False)["a/h"][:]
    with pytest.raises(StoreError, match="rows 16 to 19 are not what was written"):
        store.open(folder)["a/h"][17]
    files[1].unlink()
    with pytest.raises(StoreError, match="is missing"):
        store.open(folder, verify=False)["a/h"][:]


@pytest.mark.parametrize("exchanged", [(1, 2), (2, 4)])
def test_batches_in_another_order_do_not_continue(tmp_path, exchanged):
    harvest(tmp_path, BATCHES[:5])
    first, second = exchanged
    other = list(BATCHES)
    other[first], other[second] = other[second], other[first]
    with pytest.raises(StoreError, match=f"batch {first} is not the one that was stored"):
        harvest(tmp_path, other)
    late = [x.copy() for x in BATCHES]
    late[3][-1, -1] += 1
    with pytest.raises(StoreError, match="batch 3 is not the one that was stored"):
        harvest(tmp_path, late)


def test_a_change_far_into_a_large_batch_is_noticed(tmp_path):
    batches = [np.zeros((1, 50_000), np.float32) for _ in range(3)]
    f = lambda x: sonde.sow(x.sum(1), "h")
    store.harvest(f, batches, tmp_path, progress=False)
    batches[1][0, -1] = 1
    with pytest.raises(StoreError, match="batch 1 is not the one"):
        store.harvest(f, batches, tmp_path, progress=False)


def test_repair_computes_only_what_is_damaged(whole, tmp_path, monkeypatch):
    folder, ran = tmp_path / "damaged", []
    run = BatchProgram.__call__
    monkeypatch.setattr(BatchProgram, "__call__", lambda self, batch: ran.append(batch) or run(self, batch))
    of_data = [case for case in cases(whole) if "c" in case[0].parts]
    of_names = [case for case in cases(whole) if case[0].name == "zarr.json"]
    for file, said, do in [*of_data[::17], *of_names[::9]]:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        do(folder / file)
        ran.clear()
        assert store.repair(with_numbers, inputs(), folder, keys=keys), f"{file} {said}"
        assert len(ran) == (0 if file.name == "zarr.json" else 2), f"{file} {said}"  # a file has two batches
        assert store.check(folder) == []
        for name, array in by_slices(folder).items():
            np.testing.assert_array_equal(array, EXPECTED[name], err_msg=f"{file} {said}")
    assert store.repair(with_numbers, inputs(), whole, keys=keys) == []


def test_repair_refuses_other_numbers_and_other_batches(whole, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(whole, folder)
    shutil.rmtree(folder / "values" / "relu" / "c")
    with pytest.raises(StoreError, match="was started by a different call: .*the program computes something else"):
        store.repair(lambda x, n: program(x * 1.5), inputs(), folder, keys=keys)
    other = inputs()
    other[4] = (other[4][0] + 1, other[4][1])
    with pytest.raises(StoreError, match="batch 4 is not the one that was stored"):
        store.repair(with_numbers, other, folder, keys=keys)
    with pytest.raises(StoreError, match="fewer than the 6 batches"):
        store.repair(with_numbers, inputs()[:3], folder, keys=keys)
    assert store.check(folder)
    (damage,) = store.repair(with_numbers, inputs(), folder, keys=keys)  # what came before batch 4 is repaired
    assert damage.rows == (32, 48)
    np.testing.assert_array_equal(store.open(folder)["relu"][:], EXPECTED["values/relu"])
