"""The Zarr arrays of a store: how they are cut into files, compressed and opened.

A file (a shard, in Zarr's words) holds the rows that one process writes at a time, so that no two write the same file;
inside it, chunks of about half a megabyte are compressed and carry a checksum each, so that a slice is read without the
rest. An all-zero chunk is written like any other, so a missing chunk is a lost one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sonde.store.folder import Folder, tensorstore
from sonde.store.manifest import ArrayInfo

CHUNK_BYTES = 1 << 19
FILE_BYTES = 1 << 24
_ANY_ROWS = 1 << 50
READ_CACHE = 1 << 26  # without one, the index of a file is read again for every chunk


def rows_per_chunk(rows: int, row_bytes: int) -> int:
    """How many of the rows of a file make a chunk: a divisor of `rows`, of about `CHUNK_BYTES`.

    Example:
        >>> rows_per_chunk(8192, 1536)
        256
        >>> rows_per_chunk(7, 1 << 22)
        1
    """
    wanted = max(1, CHUNK_BYTES // max(row_bytes, 1))
    divisors = [d for d in range(1, math.isqrt(rows) + 1) if rows % d == 0]
    divisors += [rows // d for d in divisors]
    fitting = max(d for d in divisors if d <= wanted)
    if fitting * 8 >= min(wanted, rows):
        return fitting
    return min(d for d in divisors if d > wanted)  # one large chunk is better than many tiny ones


def create(folder: Folder, info: ArrayInfo, *, rows: int, columns: Sequence[int]) -> None:
    """Makes an array without rows, if it does not exist yet.

    Args:
        folder: The store.
        info: The array.
        rows: How many rows a file holds.
        columns: How much of a row a file holds, per axis.
    """
    if folder.read(f"{info.folder}/zarr.json") is not None:
        return
    ts = tensorstore()
    dtype = np.dtype(ts.dtype(info.dtype).numpy_dtype)
    row_bytes = int(np.prod(columns, dtype=np.int64)) * dtype.itemsize
    chunk = (rows_per_chunk(rows, row_bytes), *columns)
    sharding = {
        "chunk_shape": chunk,
        "codecs": _codecs(dtype.itemsize),
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    }
    spec = _spec(folder, info) | {
        "metadata": {
            "shape": [0, *info.row],
            "data_type": info.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [rows, *columns]}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        },
    }
    try:
        ts.open(spec, create=True).result()
    except Exception as error:
        raise folder.failed(error) from error


def _codecs(itemsize: int) -> list[dict[str, Any]]:
    """The codecs of a chunk.

    The low bits of activations are noise; only the exponents can be compressed, and zstd's entropy coder does that
    alone. Blosc, which groups bytes first, saves no more and takes longer in both directions. Zstd's own checksum would
    not cover some bits of its header.
    """
    endian = {"name": "bytes", "configuration": {"endian": "little"}} if itemsize > 1 else {"name": "bytes"}
    zstd = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
    return [endian, zstd, {"name": "crc32c"}]


def create_groups(folder: Folder, infos: Sequence[ArrayInfo]) -> None:
    """Makes the store and each kind in it a Zarr group, for other readers, if it is not one yet."""
    group = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()
    for kind in ("", *dict.fromkeys(f"{info.kind}/" for info in infos)):
        if folder.read(f"{kind}zarr.json") is None:
            folder.write(f"{kind}zarr.json", group)


def open_array(folder: Folder, info: ArrayInfo, *, cache: int = READ_CACHE) -> Any:
    """An array of a store, as TensorStore sees it.

    Args:
        folder: The store.
        info: The array.
        cache: The size of the read cache in bytes.

    Raises:
        StoreError: It does not exist, or cannot be read.
    """
    ts = tensorstore()
    context = ts.Context({"cache_pool": {"total_bytes_limit": cache}})
    spec = _spec(folder, info) | {"recheck_cached_data": "open"} if cache else _spec(folder, info)
    try:
        return ts.open(spec, context=context, open=True).result()
    except Exception as error:
        raise folder.damaged(info.name, error) from error


def _spec(folder: Folder, info: ArrayInfo) -> dict[str, Any]:
    kvstore = folder.spec(f"{info.folder}/")
    return {"driver": "zarr3", "kvstore": kvstore, "store_data_equal_to_fill_value": True}


def open_for_writing(folder: Folder, info: ArrayInfo) -> Any:
    """Opens an array for writing any rows, whatever its number of rows.

    Writers neither read nor change that number: the process that lists rows does (`resized`). Two processes that change
    it at once would undo each other's change.
    """
    stored = open_array(folder, info, cache=0)
    spec = stored.spec().to_json()
    spec.pop("transform", None)
    spec["metadata"]["shape"][0] = _ANY_ROWS
    return tensorstore().open(spec, open=True, assume_metadata=True).result()


def resized(array: Any, rows: int) -> Any:
    """Sets the number of rows of an array; returns a future of the array."""
    return array.resize(exclusive_max=[rows, *array.shape[1:]])
