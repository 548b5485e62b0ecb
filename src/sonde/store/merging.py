"""`merge`: one store from several that were harvested separately, for example by an array of jobs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from sonde.errors import StoreError
from sonde.store import zarr_arrays
from sonde.store.folder import Folder, PathLike, tensorstore
from sonde.store.manifest import (
    MANIFEST,
    ArrayInfo,
    Manifest,
    Progress,
    read_manifest,
    read_progress,
    write_progress,
)
from sonde.store.reading import Store
from sonde.store.reading import open as open_store

BYTES = 1 << 26  # copied at a time


def merge(folders: Sequence[PathLike], into: PathLike) -> Store:
    """Concatenates the rows of several stores into a new one.

    Args:
        folders: The stores, in the order of the rows. They must hold the same arrays, of the same program.
        into: A folder that is empty or missing.

    Raises:
        StoreError: A store is missing or holds other arrays, or the folder is not empty.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import store
        >>> parts = [tempfile.mkdtemp(), tempfile.mkdtemp()]
        >>> for i, part in enumerate(parts):
        ...     _ = store.harvest(lambda x: sonde.sow(x * 2, "h"), [jnp.full((2, 3), i)], part, progress=False)
        >>> store.merge(parts, tempfile.mkdtemp())["h"][:, 0]
        array([0, 0, 2, 2], dtype=int32)
    """
    places = [Folder(folder) for folder in folders]
    if not places:
        raise ValueError("merge takes at least one store")
    manifests = [_manifest(place) for place in places]
    for place, manifest in zip(places[1:], manifests[1:]):
        _check_alike(places[0], manifests[0], place, manifest)
    target = Folder(into)
    if read_manifest(target) is not None:
        raise StoreError(f"{target.name!r} holds a store already: merge into an empty folder")
    target.clear_locks()
    progresses = [read_progress(place) for place in places]
    whole = dataclasses.replace(manifests[0], request={**manifests[0].request, "merged from": [p.name for p in places]})
    zarr_arrays.create_groups(target, whole.arrays)
    rows = {info.name: _copied(info, places, progresses, target) for info in whole.arrays}
    batches = sum(progress.batches for progress in progresses)
    write_progress(target, 0, Progress(batches, rows, finished=True))
    target.write(MANIFEST, whole.to_json())  # last, so that an interrupted merge is not a store
    return open_store(into)


def _manifest(place: Folder) -> Manifest:
    manifest = read_manifest(place)
    if manifest is None:
        raise StoreError(f"there is no store in {place.name!r}")
    return manifest


def _check_alike(place: Folder, manifest: Manifest, other: Folder, another: Manifest) -> None:
    if manifest.arrays != another.arrays:
        known, new = ({info.name: info for info in m.arrays} for m in (manifest, another))
        names = [name for name in {**known, **new} if known.get(name) != new.get(name)]
        raise StoreError(f"{other.name!r} and {place.name!r} hold different arrays: {', '.join(names)}")
    for key in ("weights", "dtype"):
        if manifest.request.get(key) != another.request.get(key):
            raise StoreError(f"{other.name!r} was not made by the program that made {place.name!r}: {key} differ")


def _copied(info: ArrayInfo, places: Sequence[Folder], progresses: Sequence[Progress], target: Folder) -> int:
    """Copies an array from all stores; returns its number of rows."""
    ts = tensorstore()
    first = zarr_arrays.open_array(places[0], info)
    per_file = first.chunk_layout.write_chunk.shape
    zarr_arrays.create(target, info, rows=per_file[0], columns=per_file[1:])
    counts = [progress.rows.get(info.name, 0) for progress in progresses]
    array = zarr_arrays.resized(zarr_arrays.open_array(target, info), sum(counts)).result()
    row_bytes = max(1, ts.dtype(info.dtype).numpy_dtype.itemsize * math.prod(info.row))
    step = max(per_file[0], BYTES // row_bytes // per_file[0] * per_file[0])
    end = 0
    for place, count in zip(places, counts):
        source = zarr_arrays.open_array(place, info)
        for start in range(0, count, step):
            stop = min(start + step, count)
            array[end + start : end + stop].write(source[start:stop].read().result()).result()
        end += count
    return end
