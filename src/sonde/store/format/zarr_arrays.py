"""The Zarr arrays of a store: how they are cut into files, what other programs read of them, and how they are opened.

A file (a shard, in Zarr's words) holds the rows that one process writes at a time, so that no two write the same file;
inside it are chunks of about half a megabyte, of which each is verified by itself, so that a slice is read without the
rest. `row_files.py` says where rows are. An all-zero chunk is written like any other, so a missing one is lost.
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
    itemsize = dtype_of(info).itemsize
    little = {"endian": "little"}
    sharding = {
        "chunk_shape": [info.chunk_rows, *info.file[1:]],
        "codecs": [{"name": "bytes"} | ({"configuration": little} if itemsize > 1 else {})],
        "index_codecs": [{"name": "bytes", "configuration": little}, {"name": "crc32c"}],
        "index_location": "start",
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


def dtype_of(info: ArrayInfo) -> np.dtype:
    """The dtype of an array.

    Raises:
        StoreError: TensorStore does not know it.
    """
    try:
        return np.dtype(tensorstore().dtype(info.dtype).numpy_dtype)
    except (TypeError, ValueError) as error:
        raise StoreError(f"a store cannot hold {info.name!r} as {info.dtype}: {reason(error)}") from error


def check_can_hold(info: ArrayInfo) -> None:
    """Raises StoreError if the format has no such array."""
    try:
        spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata(info, 0)}
        tensorstore().open(spec, open=True, assume_metadata=True).result()
    except Exception as error:
        raise StoreError(
            f"a store cannot hold {info.name!r}, rows of {indexed(info.dtype, info.row)}: "
            f"{reason(error.__cause__ or error)}; choose another dtype="
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
    spec = {
        "driver": "zarr3",
        "kvstore": folder.spec(f"{info.folder}/"),
        "metadata": metadata(info, rows),
        "fill_missing_data_reads": False,
    }
    if cache:
        spec["recheck_cached_data"] = "open"
    return folder.wait(tensorstore().open(spec, context=folder.context(cache), open=True, assume_metadata=True))
