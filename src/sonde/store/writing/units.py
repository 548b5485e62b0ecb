"""Elastic harvests: batches in units, which any number of processes take, each by itself.

    units.json                       the call, and how many batches a unit has
    units/00000012/claim.json        which process works on the unit; it is written again while the process lives
    units/00000012/done.json         which attempt holds the unit: written once, by whichever process is first
    units/00000012/attempts/ab12/    an attempt: a store of its own

No process waits for another, and there is no coordinator: a claim and the end of a unit are files that the storage
creates only if they do not exist. A claim that stays the same for the length of a lease, by the clock of the process
that looks at it, belongs to a process that has died, and the unit is taken again. If both end it, one attempt counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sonde.errors import StoreError
from sonde.store.format.folder import Folder
from sonde.store.format.sealed import damaged, seal, unseal
from sonde.store.format.storage import Storage

UNITS = "units.json"
_LOOK = 0.2  # seconds between looks at what others do


@dataclasses.dataclass(frozen=True)
class UnitsManifest:
    """What the processes of an elastic harvest share.

    Attributes:
        request: The arguments of the harvest, as texts.
        batches: How many batches there are.
        size: How many batches a unit has.
        identity: A text that no other store has.
    """

    request: dict[str, Any]
    batches: int
    size: int
    identity: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))

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
    if data is None:
        return None
    told = unseal(data, UNITS, folder.name)
    try:
        manifest = UnitsManifest(**told)
        if type(manifest.batches) is not int or type(manifest.size) is not int or manifest.size < 1:
            raise ValueError(f"{manifest.batches!r} batches in units of {manifest.size!r}")
        return manifest
    except (TypeError, ValueError) as error:
        raise damaged(UNITS, folder.name, str(error)) from error


def attempt_of(folder: Folder, manifest: UnitsManifest, unit: int) -> str | None:
    """The folder of the attempt that holds a unit; None if the unit is not done.

    Raises:
        StoreError: The file that says so is damaged.
    """
    name = f"{_unit(unit)}/done.json"
    data = folder.read(name)
    if data is None:
        return None
    told = unseal(data, name, folder.name)
    if (told.get("identity"), told.get("unit")) != (manifest.identity, unit):
        raise damaged(name, folder.name, "it belongs to another store or unit")
    return f"{_unit(unit)}/attempts/{told['attempt']}"


def _unit(unit: int) -> str:
    return f"units/{unit:08d}"


class Worker:
    """Takes units until all are done.

    Args:
        folder: The store.
        manifest: What the processes share.
        storage: How to reach the folder.
        lease: After how many seconds without a sign of life a unit is taken from another process.
        leaving: Tells whether this process was asked to end.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: UnitsManifest,
        storage: Storage | None,
        *,
        lease: float,
        leaving: Callable[[], bool],
    ) -> None:
        self._folder, self._manifest, self._storage = folder, manifest, storage
        self._lease, self._leaving = lease, leaving
        self._name = secrets.token_hex(8)
        self._seen: dict[int, tuple[bytes, float]] = {}  # the claim of another process, and since when it is the same

    def run(self, compute: Callable[[range, str], bool]) -> bool:
        """Computes units.

        Args:
            compute: Computes the batches with these numbers into a folder below the store; tells whether it finished.

        Returns:
            Whether all units are done; else this process was asked to leave.
        """
        open_units = set(range(self._manifest.count))
        while open_units and not self._leaving():
            taken = False
            # Processes begin at different places, so that they rarely want the same unit.
            order = sorted(open_units)
            start = int(self._name, 16) % len(order)
            for unit in order[start:] + order[:start]:
                if attempt_of(self._folder, self._manifest, unit) is not None:
                    open_units.discard(unit)
                elif self._leaving():
                    return False
                elif self._claimed(unit):
                    taken = True
                    if self._attempt(unit, compute):
                        open_units.discard(unit)
            if open_units and not taken:
                time.sleep(min(_LOOK, self._lease / 4))
        return not open_units

    def _claimed(self, unit: int) -> bool:
        """Takes a unit, if no other process has it, or that has died."""
        name = f"{_unit(unit)}/claim.json"
        claim, generation = self._folder.read_version(name)
        if claim is not None:
            now = time.monotonic()
            same, since = self._seen.get(unit, (b"", now))
            if claim != same:
                self._seen[unit] = claim, now
                return False
            if now - since < self._lease:
                return False
        return self._folder.write_if(name, self._claim(0), generation)

    def _claim(self, beat: int) -> bytes:
        return seal({"process": self._name, "beat": beat})

    def _attempt(self, unit: int, compute: Callable[[range, str], bool]) -> bool:
        """Computes a unit; whichever attempt ends first is the one that counts."""
        attempt = secrets.token_hex(4)
        with self._alive(unit):
            finished = compute(self._manifest.span(unit), f"{_unit(unit)}/attempts/{attempt}")
        if not finished:
            self._folder.remove([f"{_unit(unit)}/claim.json"])  # another process need not wait for the lease
            return False
        told = {"identity": self._manifest.identity, "unit": unit, "attempt": attempt}
        self._folder.create(f"{_unit(unit)}/done.json", seal(told))
        return True

    @contextlib.contextmanager
    def _alive(self, unit: int) -> Iterator[None]:
        """Writes the claim again and again during a block, so that others see that this process lives."""
        ended = threading.Event()

        def beat() -> None:
            number = 0
            while not ended.wait(self._lease / 4):
                number += 1
                with contextlib.suppress(StoreError):  # at worst another process computes the unit too
                    self._folder.write(f"{_unit(unit)}/claim.json", self._claim(number))

        thread = threading.Thread(target=beat, name="sonde-store-claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def shared_manifest(folder: Folder, request: dict[str, Any], batches: Sequence[Any], size: int) -> UnitsManifest:
    """The manifest that all processes of the harvest share; the first process makes it.

    Raises:
        StoreError: The folder holds something else, or other batches are divided into other units.
    """
    manifest = read_units(folder)
    if manifest is None:
        others = [key for key in folder.keys() if not key.startswith("units")]  # noqa: SIM118
        if others:
            raise StoreError(f"{folder.name!r} is not empty and holds no elastic store: choose another folder")
        folder.create(UNITS, seal(dataclasses.asdict(UnitsManifest(request, len(batches), size))))
        manifest = read_units(folder)
        assert manifest is not None
    if (manifest.batches, manifest.size) != (len(batches), size):
        raise StoreError(
            f"the store {folder.name!r} has {manifest.batches} batches in units of {manifest.size}, this call "
            f"{len(batches)} in units of {size}: repeat the call that started it, or choose another folder"
        )
    return manifest
