"""Rows written in any pieces, read in place and by TensorStore, which knows the files as Zarr."""

from __future__ import annotations

import itertools
import json
import random

import ml_dtypes
import numpy as np
import pytest
import tensorstore

from sonde.store.format import zarr_arrays
from sonde.store.format.folder import Folder
from sonde.store.format.manifest import ArrayInfo
from sonde.store.format.row_files import RowFiles, RowWriter
from sonde.store.format.rows import Piece

DTYPES = [np.dtype(d) for d in ("float32", "int8", "bool", "complex64", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2)]


def _spans(size: int, rng: random.Random) -> list[slice]:
    """An axis, cut at random places."""
    cuts = sorted({0, size, *(rng.randint(0, size) for _ in range(rng.randint(0, 3)))})
    return [slice(low, high) for low, high in itertools.pairwise(cuts)]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_written_is_read(tmp_path, seed):
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    row = tuple(rng.choice([1, 2, 3, 6]) for _ in range(rng.randint(0, 3)))
    chunk = rng.randint(1, 4)
    # A device has a part of a row, also one that does not divide it: another number of them may continue.
    file = (chunk * rng.randint(1, 4), *(rng.randint(1, n) for n in row))
    dtype, n_rows = rng.choice(DTYPES), rng.randint(1, 30)
    info = ArrayInfo("values", "h", "values/h", row, dtype.name, file, chunk)
    array = numbers.integers(0, 3, (n_rows, *row)).astype(dtype)

    columns = [_spans(n, rng) for n in row]
    pieces = []
    for rows in _spans(n_rows, rng):
        for index in np.ndindex(*map(len, columns)):
            part = tuple(spans[i] for spans, i in zip(columns, index))
            taken = np.arange(rows.start, rows.stop)
            if rng.random() < 0.5:  # as two processes have them that share files
                pieces += [Piece(taken[i::2], part, array[(taken[i::2], *part)]) for i in range(min(2, len(taken)))]
            else:
                pieces.append(Piece(rows, part, array[(rows, *part)]))
    rng.shuffle(pieces)
    writers = [RowWriter(Folder(tmp_path), [info]) for _ in range(2)]
    for piece in pieces:
        rng.choice(writers).write(0, piece)
    for writer in writers:
        writer.settle(writer.taken())
    writers[0].complete([n_rows], every=True)

    files = RowFiles(info)
    first = rng.randrange(n_rows)
    into = np.empty((n_rows - first, *row), dtype)
    files.read(tmp_path, first, n_rows, into)
    np.testing.assert_array_equal(into, array[first:])
    assert list(files.odd_frames(tmp_path, n_rows, finished=True)) == []
    (tmp_path / "values" / "h" / "zarr.json").write_text(json.dumps(zarr_arrays.metadata(info, n_rows)))
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/values/h/", "fill_missing_data_reads": False}
    np.testing.assert_array_equal(tensorstore.open(spec).result()[...].read().result(), array)
