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

from sonde._array_text import indexed
from sonde.errors import StoreError
from sonde.store.format.folder import Folder, reason, tensorstore
from sonde.store.format.manifest import ArrayInfo

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


def metadata(info: ArrayInfo, rows: int) -> dict[str, Any]:
    """What `zarr.json` says of an array with so many rows.

    Sonde reads and writes arrays by its own manifest; the file is for other readers.
    """
    itemsize = np.dtype(tensorstore().dtype(info.dtype).numpy_dtype).itemsize
    sharding = {
        "chunk_shape": [info.chunk_rows, *info.file[1:]],
        "codecs": _codecs(itemsize),
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [rows, *info.row],
        "data_type": info.dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(info.file)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if info.dtype == "bool" else [0.0, 0.0] if info.dtype.startswith("complex") else 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
    }


def _codecs(itemsize: int) -> list[dict[str, Any]]:
    """The codecs of a chunk.

    The low bits of activations are noise; only the exponents can be compressed, and zstd's entropy coder does that
    alone. Blosc, which groups bytes first, saves no more and takes longer in both directions. Zstd's own checksum would
    not cover some bits of its header.
    """
    endian = {"name": "bytes", "configuration": {"endian": "little"}} if itemsize > 1 else {"name": "bytes"}
    zstd = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}
    return [endian, zstd, {"name": "crc32c"}]


def check_can_hold(info: ArrayInfo) -> None:
    """Raises StoreError if the format has no such array."""
    try:
        spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata(info, 0)}
        tensorstore().open(spec, open=True, assume_metadata=True).result()
    except Exception as error:
        raise StoreError(
            f"a store cannot hold {info.name!r}, rows of {indexed(info.dtype, info.row)}: {reason(error)}; choose "
            "another dtype="
        ) from error


def metadata_files(infos: Sequence[ArrayInfo], rows: Sequence[int]) -> dict[str, bytes]:
    """The files that make a store readable for other programs: a Zarr group for each kind, and the arrays."""
    group = json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}}).encode()
    kinds = dict.fromkeys(f"{info.kind}/" for info in infos)
    files = {f"{kind}zarr.json": group for kind in ("", *kinds)}
    return files | {f"{info.folder}/zarr.json": json.dumps(metadata(info, n)).encode() for info, n in zip(infos, rows)}


def open_array(folder: Folder, info: ArrayInfo, rows: int, *, cache: int = READ_CACHE) -> Any:
    """An array of a store, as TensorStore sees it. A chunk that is missing is an error when it is read.

    Args:
        folder: The store.
        info: The array.
        rows: How many rows it has.
        cache: The size of the read cache in bytes.
    """
    spec = _spec(folder, info, rows) | {"fill_missing_data_reads": False}
    if cache:
        spec["recheck_cached_data"] = "open"
    return folder.wait(tensorstore().open(spec, context=folder.context(cache), open=True, assume_metadata=True))


def open_for_writing(folder: Folder, info: ArrayInfo) -> Any:
    """Opens an array for writing any rows, whatever its number of rows."""
    spec = _spec(folder, info, _ANY_ROWS)
    return folder.wait(tensorstore().open(spec, context=folder.context(0), open=True, assume_metadata=True))


def _spec(folder: Folder, info: ArrayInfo, rows: int) -> dict[str, Any]:
    kvstore = folder.spec(f"{info.folder}/")
    return {
        "driver": "zarr3",
        "kvstore": kvstore,
        "store_data_equal_to_fill_value": True,
        "metadata": metadata(info, rows),
    }
