"""`merge`: one store from several that were harvested separately, for example by an array of jobs."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence

from sonde.errors import StoreError
from sonde.store.format import zarr_arrays
from sonde.store.format.digests import Digester, Run
from sonde.store.format.folder import Folder, PathLike
from sonde.store.format.manifest import MANIFEST, ArrayInfo, Manifest, read_manifest
from sonde.store.format.parts import parts_of
from sonde.store.format.progress import Entry, Progress, ProgressFile
from sonde.store.format.row_files import RowWriter
from sonde.store.format.rows import Piece
from sonde.store.format.storage import Storage
from sonde.store.reading.reader import Store
from sonde.store.reading.reader import open as open_store
from sonde.store.reading.verified_rows import RowReader


def merge(folders: Sequence[PathLike], into: PathLike, *, storage: Storage | None = None) -> Store:
    """Concatenates the rows of several stores into a new one.

    Args:
        folders: The stores, in the order of the rows. They must hold the same arrays, of the same program.
        into: A folder that is empty or missing.
        storage: How to reach buckets, if the environment does not say.

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
    if not folders:
        raise ValueError("merge takes at least one store")
    parts = [part for folder in folders for part in parts_of(Folder(folder, storage), storage)[0]]
    places, manifests = [part.folder for part in parts], [part.manifest for part in parts]
    for place, manifest in zip(places[1:], manifests[1:]):
        _check_alike(places[0], manifests[0], place, manifest)
    target = Folder(into, storage)
    if read_manifest(target) is not None:
        raise StoreError(f"{target.name!r} holds a store already: merge into an empty folder")
    target.clear_locks()
    version = target.read_version(MANIFEST)[1]
    listed = [part.listed for part in parts]
    whole = dataclasses.replace(
        manifests[0],
        request={**manifests[0].request, "merged from": [Folder(folder, storage).name for folder in folders]},
        writers=1,
        generation=0,
        prepared=True,
        identity=secrets.token_hex(8),
    )
    runs, writer = [], RowWriter(target, whole.arrays)
    for number, info in enumerate(whole.arrays):
        readers = [
            RowReader(place, manifest.arrays[number], done, number, verify=True)
            for place, manifest, done in zip(places, manifests, listed)
        ]
        counts = [done.rows[number] for done in listed]
        runs.append(tuple(_copied(number, info, readers, counts, writer)))
    rows = tuple(map(sum, zip(*(done.rows for done in listed))))
    inputs = tuple(text for done in listed for text in done.inputs())
    writer.complete(rows)
    target.write_all(zarr_arrays.metadata_files(whole.arrays, rows))
    written = Progress().plus(Entry(0, inputs, rows, tuple(runs)))
    ProgressFile(target, whole, 0).create(dataclasses.replace(written, finished=True))
    whole.write(target, version)  # last, so that an interrupted merge is not a store
    return open_store(into, storage=storage)


def _check_alike(place: Folder, manifest: Manifest, other: Folder, another: Manifest) -> None:
    names = manifest.differing(another)
    if names:
        raise StoreError(f"{other.name!r} and {place.name!r} hold different arrays: {', '.join(names)}")
    for key in ("weights", "dtype"):
        if manifest.request.get(key) != another.request.get(key):
            raise StoreError(f"{other.name!r} was not made by the program that made {place.name!r}: {key} differ")


def _copied(
    number: int, info: ArrayInfo, readers: Sequence[RowReader], counts: Sequence[int], into: RowWriter
) -> list[Run]:
    """Copies an array from all stores; returns the checksums of its rows."""
    digester, columns, start = Digester(info.chunk_rows), tuple(slice(0, size) for size in info.row), 0
    for reader, count in zip(readers, counts):
        for _, data in reader.blocks([(0, count)]):
            piece = Piece(slice(start, start + len(data)), columns, data)
            digester.add(piece)
            into.write(number, piece)
            start += len(data)
        into.settle(into.taken())
    return digester.taken()
