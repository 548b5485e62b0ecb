"""The parts of a store: itself, or the units of an elastic harvest in order."""

from __future__ import annotations

import concurrent.futures
import dataclasses

from sonde.errors import StoreError
from sonde.store.format.folder import Folder
from sonde.store.format.manifest import MANIFEST, Manifest, needed_manifest
from sonde.store.format.progress import Listed, read_progress
from sonde.store.format.storage import Storage
from sonde.store.format.units import UnitsManifest, attempt_of, is_complete, read_units

READS = 16  # files that are read at a time: a bucket takes many milliseconds for each


@dataclasses.dataclass(frozen=True)
class Part:
    """A folder with arrays, and what it lists."""

    folder: Folder
    manifest: Manifest
    listed: Listed


def parts_of(folder: Folder, storage: Storage | None) -> tuple[list[Part], str, bool]:
    """The parts of a store, a text that no other store has, and whether the harvest is complete.

    Of an elastic harvest that is not complete, the parts are the units before the first that is not done.

    Raises:
        StoreError: There is no store, or its metadata is damaged.
    """
    units = read_units(folder) if folder.read(MANIFEST) is None else None
    if units is None:
        part = _part(folder)
        return [part], part.manifest.identity, part.listed.finished
    complete = is_complete(folder, units)
    with concurrent.futures.ThreadPoolExecutor(READS) as pool:
        attempts = list(pool.map(lambda unit: attempt_of(folder, units, unit, complete=complete), range(units.count)))
        count = attempts.index(None) if None in attempts else units.count
        parts = list(pool.map(lambda unit: part_of_unit(folder, storage, units, unit, attempts[unit]), range(count)))
    if not parts:
        raise StoreError(f"the store {folder.name!r} has no unit that can be read yet: the first one is not done")
    for unit, part in enumerate(parts):
        names = parts[0].manifest.differing(part.manifest)
        if names:
            raise StoreError(f"unit {unit} of the store {folder.name!r} holds other rows: {', '.join(names)}")
    return parts, units.identity, count == units.count


def part_of_unit(folder: Folder, storage: Storage | None, units: UnitsManifest, unit: int, attempt: str | None) -> Part:
    """A unit that is done.

    Raises:
        StoreError: Its metadata is damaged, or it does not hold its batches.
    """
    assert attempt is not None
    part = _part(Folder(folder.below(attempt), storage))
    if part.listed.batches != len(units.span(unit)) or not part.listed.finished:
        raise StoreError(f"unit {unit} of the store {folder.name!r} is damaged: it does not hold all its batches")
    return part


def _part(folder: Folder) -> Part:
    manifest = needed_manifest(folder)
    return Part(folder, manifest, read_progress(folder, manifest))
