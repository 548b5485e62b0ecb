"""The files of an elastic harvest: batches in units, which any number of processes take, each by itself.

    units.json                       the call, and how many batches a unit has
    units/00000012/claim.json        which process works on the unit; it is written again while the process lives
    units/00000012/done.json         which attempt holds the unit: written once, by whichever process is first
    units/00000012/attempts/ab12/    an attempt: a store of its own
    units-complete.json              says that all units are done: one that is not has been lost since

No process waits for another, and there is no coordinator: a claim and the end of a unit are files that the storage
creates only if they do not exist (`writing/worker.py`).
"""

from __future__ import annotations

import dataclasses
import re
import secrets
from collections.abc import Mapping
from typing import Any

from sonde.errors import StoreError
from sonde.store.format.decoding import decoded
from sonde.store.format.folder import Folder
from sonde.store.format.sealed import damaged, seal

UNITS = "units.json"
COMPLETE = "units-complete.json"


@dataclasses.dataclass(frozen=True)
class UnitsManifest:
    """What the processes of an elastic harvest share.

    Attributes:
        request: The arguments of the harvest, as texts.
        batches: How many batches there are.
        size: How many batches a unit has.
        identity: A text that no other store has.
    """

    request: Mapping[str, Any]
    batches: int
    size: int
    identity: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        if min(self.batches, self.size) < 1:
            raise ValueError(f"{self.batches} batches in units of {self.size}")

    @property
    def count(self) -> int:
        """How many units there are."""
        return -(-self.batches // self.size)

    def span(self, unit: int) -> range:
        """The numbers of the batches of a unit."""
        return range(unit * self.size, min((unit + 1) * self.size, self.batches))


def read_units(folder: Folder) -> UnitsManifest | None:
    """The manifest of an elastic harvest; None if the folder is something else.

    Raises:
        StoreError: It is damaged.
    """
    data = folder.read(UNITS)
    return None if data is None else decoded(UnitsManifest, data, UNITS, folder.name)


@dataclasses.dataclass(frozen=True)
class Complete:
    """Says that all units are done.

    Attributes:
        identity: That of the store.
    """

    identity: str


@dataclasses.dataclass(frozen=True)
class Done:
    """Says which attempt holds a unit.

    Attributes:
        identity: That of the store.
        unit: The number of the unit.
        attempt: The folder of the attempt.
    """

    identity: str
    unit: int
    attempt: str

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]+", self.attempt):
            raise ValueError(f"an attempt is named {self.attempt!r}")


def shared_units(folder: Folder, request: dict[str, Any], n_batches: int, size: int) -> UnitsManifest:
    """The manifest that all processes of the harvest share; the first process makes it.

    Raises:
        StoreError: The folder holds something else, or other batches are divided into other units.
    """
    manifest = read_units(folder)
    if manifest is None:
        others = [key for key in folder.keys() if not key.startswith("units")]  # noqa: SIM118
        if others:
            raise StoreError(f"{folder.name!r} is not empty and holds no elastic store: choose another folder")
        folder.create(UNITS, seal(dataclasses.asdict(UnitsManifest(request, n_batches, size))))
        manifest = read_units(folder)
        assert manifest is not None
    if (manifest.batches, manifest.size) != (n_batches, size):
        raise StoreError(
            f"the store {folder.name!r} has {manifest.batches} batches in units of {manifest.size}, this call "
            f"{n_batches} in units of {size}: repeat the call that started it, or choose another folder"
        )
    return manifest


def folder_of(unit: int) -> str:
    """The folder of a unit."""
    return f"units/{unit:08d}"


def is_complete(folder: Folder, manifest: UnitsManifest) -> bool:
    """Whether all units have been done once.

    Raises:
        StoreError: The file that says so is damaged.
    """
    data = folder.read(COMPLETE)
    if data is None:
        return False
    if decoded(Complete, data, COMPLETE, folder.name).identity != manifest.identity:
        raise damaged(COMPLETE, folder.name, "it belongs to another store")
    return True


def set_complete(folder: Folder, manifest: UnitsManifest) -> None:
    """Marks all units as done, if no process has."""
    folder.create(COMPLETE, seal(dataclasses.asdict(Complete(manifest.identity))))


def attempt_of(folder: Folder, manifest: UnitsManifest, unit: int, *, complete: bool = False) -> str | None:
    """The folder of the attempt that holds a unit; None if the unit is not done.

    Args:
        folder: The store.
        manifest: What its processes share.
        unit: The number of the unit.
        complete: Whether all units have been done, so that this one must be.

    Raises:
        StoreError: The file that says so is damaged, or has been lost.
    """
    name = f"{folder_of(unit)}/done.json"
    data = folder.read(name)
    if data is None:
        if complete:
            raise damaged(name, folder.name, "it is missing")
        return None
    done = decoded(Done, data, name, folder.name)
    if (done.identity, done.unit) != (manifest.identity, unit):
        raise damaged(name, folder.name, "it belongs to another store or unit")
    return f"{folder_of(unit)}/attempts/{done.attempt}"


def set_done(folder: Folder, manifest: UnitsManifest, unit: int, attempt: str) -> None:
    """Makes an attempt the one that holds a unit, if none does yet; removes the files of all other attempts."""
    done = Done(manifest.identity, unit, attempt)
    folder.create(f"{folder_of(unit)}/done.json", seal(dataclasses.asdict(done)))
    holds = attempt_of(folder, manifest, unit)
    folder.remove(key for key in folder.keys(f"{folder_of(unit)}/attempts/") if not key.startswith(f"{holds}/"))


def reopen(folder: Folder, unit: int) -> None:
    """Makes a unit one that is not done."""
    folder.remove([f"{folder_of(unit)}/{name}.json" for name in ("done", "claim")])
