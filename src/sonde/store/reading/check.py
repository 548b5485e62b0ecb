"""`check`: read everything in a store, and find what is missing or damaged."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from sonde.errors import StoreError
from sonde.store.format import zarr_arrays
from sonde.store.format.folder import Folder, PathLike, reason
from sonde.store.format.manifest import ArrayInfo, Manifest
from sonde.store.format.parts import parts_of
from sonde.store.format.progress import Listed
from sonde.store.format.row_files import RowFiles
from sonde.store.format.storage import Storage
from sonde.store.reading.verified_rows import RowReader


@dataclasses.dataclass(frozen=True)
class Damage:
    """Rows that cannot be read.

    Attributes:
        name: Kind and path of the array, or the unit of an elastic harvest.
        rows: The first of the rows, and the one after the last; nothing between them if it is not about rows.
        reason: What is wrong.
        is_data: Whether the rows themselves are damaged; else only what other programs read about them.
    """

    name: str
    rows: tuple[int, int]
    reason: str
    is_data: bool = True

    def __str__(self) -> str:
        first, last = self.rows
        return f"{self.name}{f', rows {first} to {last - 1}' if first < last else ''}: {self.reason}"


def check(folder: PathLike, *, storage: Storage | None = None) -> list[Damage]:
    """Reads everything that a store lists and verifies its checksums, and the files that other programs read.

    Args:
        folder: The store.
        storage: How to reach a bucket, if the environment does not say.

    Returns:
        The damaged rows; an empty list if there are none.

    Raises:
        StoreError: There is no store, or its manifest or a progress file is damaged.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import store
        >>> folder = tempfile.mkdtemp()
        >>> _ = store.harvest(lambda x: sonde.sow(x * 2, "h"), [jnp.ones((4, 3))], folder, progress=False)
        >>> store.check(folder)
        []
    """
    damages, before = [], {}
    for part in parts_of(Folder(folder, storage), storage)[0]:
        part.listed.entries()
        damaged = _damaged_metadata(part.folder, part.manifest, part.listed) if part.manifest.prepared else []
        for number, info in enumerate(part.manifest.arrays):
            damaged += _damaged_rows(part.folder, info, part.listed, number)
        for damage in damaged:
            start = before.get(damage.name, 0)
            damages.append(dataclasses.replace(damage, rows=(start + damage.rows[0], start + damage.rows[1])))
        for info, rows in zip(part.manifest.arrays, part.listed.rows):
            before[info.name] = before.get(info.name, 0) + rows
    return damages


def _damaged_rows(folder: Folder, info: ArrayInfo, listed: Listed, number: int) -> list[Damage]:
    reader = RowReader(folder, info, listed, number, verify=True, cache=0)
    n_rows, step = listed.rows[number], info.file[0]
    damages = []
    for start in range(0, n_rows, step):
        span = start, min(start + step, n_rows)
        try:
            for _ in reader.blocks([span]):
                pass
        except StoreError as error:
            damages.append(Damage(info.name, span, reason(error.__cause__ or error)))
    # What reads the rows in a bucket reads what is around them too.
    local, damaged = folder.local_path, {damage.rows[0] for damage in damages}
    odd = [] if local is None else RowFiles(info).odd_frames(local, n_rows, finished=listed.finished)
    for name, why, span in odd:
        if span[0] not in damaged:
            damages.append(Damage(info.name, span, f"{name} {why}: other programs cannot read it", False))
    return damages


def _damaged_metadata(folder: Folder, manifest: Manifest, listed: Listed) -> list[Damage]:
    """The files that other programs read, if they do not say what the store holds."""
    damages = []
    owners = {f"{info.folder}/zarr.json": (info.name, rows) for info, rows in zip(manifest.arrays, listed.rows)}
    for name, data in zarr_arrays.metadata_files(manifest.arrays, listed.rows).items():
        stored = _parsed(folder.read(name))
        if not listed.finished and isinstance(stored, dict):  # the number of rows is written at the end
            stored = {**stored, "shape": json.loads(data).get("shape")} if "shape" in stored else stored
        if stored != json.loads(data):
            array, rows = owners.get(name, ("all arrays", 0))
            said = f"{name} is missing" if stored is None else f"{name} does not describe the array"
            damages.append(Damage(array, (0, rows), f"{said}: other programs cannot read it", False))
    return damages


def _parsed(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return "not JSON"
