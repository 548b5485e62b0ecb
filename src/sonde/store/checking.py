"""`check`: read everything in a store, and find what is missing or damaged."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from sonde.errors import StoreError
from sonde.store.folder import Folder, PathLike, reason
from sonde.store.manifest import ArrayInfo, read_manifest, read_progress
from sonde.store.zarr_arrays import open_array


@dataclasses.dataclass(frozen=True)
class Damage:
    """Rows that cannot be read.

    Attributes:
        name: Kind and path of the array.
        rows: The first of the rows, and the one after the last.
        reason: What is wrong.
    """

    name: str
    rows: tuple[int, int]
    reason: str

    def __str__(self) -> str:
        return f"{self.name}, rows {self.rows[0]} to {self.rows[1] - 1}: {self.reason}"


def check(folder: PathLike) -> list[Damage]:
    """Reads everything that a store lists and verifies its checksums.

    Args:
        folder: The store.

    Returns:
        The damaged rows; an empty list if there are none.

    Raises:
        StoreError: There is no store.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import store
        >>> folder = tempfile.mkdtemp()
        >>> _ = store.harvest(lambda x: sonde.sow(x * 2, "h"), [jnp.ones((4, 3))], folder, progress=False)
        >>> store.check(folder)
        []
    """
    place = Folder(folder)
    manifest = read_manifest(place)
    if manifest is None:
        raise StoreError(f"there is no store in {place.name!r}")
    done = read_progress(place)
    files = set(place.keys())
    found: list[Damage] = []
    for info in manifest.arrays:
        found += _damage(place, info, done.rows.get(info.name, 0), files)
    return found


def _damage(folder: Folder, info: ArrayInfo, n_rows: int, files: set[str]) -> list[Damage]:
    if not n_rows:
        return []
    try:
        array = open_array(folder, info, cache=0)
    except StoreError as error:
        return [Damage(info.name, (0, n_rows), f"cannot be opened: {reason(error.__cause__)}")]
    if array.shape[0] < n_rows:
        return [Damage(info.name, (array.shape[0], n_rows), f"the array has only {array.shape[0]} rows")]
    per_file = array.chunk_layout.write_chunk.shape
    found = []
    for start in range(0, n_rows, per_file[0]):
        span = start, min(start + per_file[0], n_rows)
        lost = [name for name in _files_of(info, start // per_file[0], per_file) if name not in files]
        if lost:
            found.append(Damage(info.name, span, f"{lost[0]} is missing"))
            continue
        try:
            array[slice(*span)].read().result()
        except Exception as error:
            found.append(Damage(info.name, span, reason(error)))
    return found


def _files_of(info: ArrayInfo, number: int, per_file: Any) -> list[str]:
    """The files that hold some rows, by Zarr's rule for their names."""
    names = [f"{info.folder}/c/{number}"]
    for size, part in zip(info.row, per_file[1:]):
        names = [f"{name}/{i}" for name in names for i in range(max(1, math.ceil(size / part)))]
    return names
