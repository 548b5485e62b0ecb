"""A process of an elastic harvest: takes units until all are done.

A claim that stays the same for the length of a lease, by the clock of the process that looks at it, belongs to a
process that has died, and the unit is taken again. If two processes end it, one attempt counts.

All processes must have the same batches. So each compares its own with the checksums of those that others have
computed, when it comes and when all are done: all of them, or some thousands chosen at random.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sonde.errors import StoreError
from sonde.store.format import checksums
from sonde.store.format.folder import Folder
from sonde.store.format.manifest import Manifest, needed_manifest
from sonde.store.format.parts import READS, part_of_unit
from sonde.store.format.sealed import seal
from sonde.store.format.storage import Storage
from sonde.store.format.units import UnitsManifest, attempt_of, folder_of, set_complete, set_done

COMPARED = 4096  # batches of other processes, at most, each time
_LOOK = 0.2  # seconds between looks at what others do


class Worker:
    """Takes units until all are done.

    Args:
        folder: The store.
        manifest: What the processes share.
        batches: The batches of this process.
        storage: How to reach the folder.
        lease: After how many seconds without a sign of life a unit is taken from another process.
        leaving: Tells whether this process was asked to end.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: UnitsManifest,
        batches: Sequence[Any],
        storage: Storage | None,
        *,
        lease: float,
        leaving: Callable[[], bool],
    ) -> None:
        self._folder, self._manifest, self._batches, self._storage = folder, manifest, batches, storage
        self._lease, self._leaving = lease, leaving
        self._name = secrets.token_hex(8)
        self._seen: dict[int, tuple[bytes, float]] = {}  # the claim of another process, and since when it is the same
        self._arrays: Manifest | None = None  # of a unit that is done: all have the same arrays
        self._compared: set[int] = set()  # units whose batches are known to be those of this process

    def run(self, compute: Callable[[range, str], bool]) -> bool:
        """Computes units.

        Args:
            compute: Computes the batches with these numbers into a folder below the store; tells whether it finished.

        Returns:
            Whether all units are done; else this process was asked to leave.

        Raises:
            StoreError: Another process has computed other batches or sites.
        """
        open_units = set(range(self._manifest.count))
        with concurrent.futures.ThreadPoolExecutor(READS) as pool:
            is_done = pool.map(self._is_done, range(self._manifest.count))
            open_units -= {unit for unit, done in enumerate(is_done) if done}
        self._compare(unit for unit in range(self._manifest.count) if unit not in open_units)
        while open_units and not self._leaving():
            taken = False
            # Processes begin at different places, so that they rarely want the same unit.
            order = sorted(open_units)
            start = int(self._name, 16) % len(order)
            for unit in order[start:] + order[:start]:
                if self._is_done(unit):
                    open_units.discard(unit)
                elif self._leaving():
                    return False
                elif self._claimed(unit):
                    taken = True
                    if self._attempt(unit, compute):
                        open_units.discard(unit)
            if open_units and not taken:
                time.sleep(min(_LOOK, self._lease / 4))
        self._compare(range(self._manifest.count))
        if not open_units:
            set_complete(self._folder, self._manifest)
        return not open_units

    def _is_done(self, unit: int) -> bool:
        return attempt_of(self._folder, self._manifest, unit) is not None

    def _claimed(self, unit: int) -> bool:
        """Takes a unit, if no other process has it, or that has died."""
        name = f"{folder_of(unit)}/claim.json"
        claim, version = self._folder.read_version(name)
        if claim is not None:
            now = time.monotonic()
            same, since = self._seen.get(unit, (b"", now))
            if claim != same:
                self._seen[unit] = claim, now
                return False
            if now - since < self._lease:
                return False
        return self._folder.write_if(name, self._claim(0), version) is not None

    def _claim(self, beat: int) -> bytes:
        return seal({"process": self._name, "beat": beat})

    def _attempt(self, unit: int, compute: Callable[[range, str], bool]) -> bool:
        """Computes a unit; whichever attempt ends first is the one that counts."""
        attempt = secrets.token_hex(4)
        with self._alive(unit):
            try:
                finished = compute(self._manifest.span(unit), f"{folder_of(unit)}/attempts/{attempt}")
            except StoreError:
                if self._is_done(unit):  # by another process, which has removed this attempt
                    return True
                raise
        if not finished:
            self._folder.remove([f"{folder_of(unit)}/claim.json"])  # another process need not wait for the lease
            return False
        self._check_arrays(
            unit, needed_manifest(Folder(self._folder.below(f"{folder_of(unit)}/attempts/{attempt}"), self._storage))
        )
        set_done(self._folder, self._manifest, unit, attempt)
        if attempt_of(self._folder, self._manifest, unit) == f"{folder_of(unit)}/attempts/{attempt}":
            self._compared.add(unit)
        return True

    def _check_arrays(self, unit: int, manifest: Manifest) -> None:
        self._arrays = self._arrays or manifest
        names = self._arrays.differing(manifest)
        if names:
            raise StoreError(
                f"unit {unit} of the store {self._folder.name!r} has other sites or rows than other units: "
                f"{', '.join(names)}; pad batches to one shape, or drop padding with keep="
            )

    @contextlib.contextmanager
    def _alive(self, unit: int) -> Iterator[None]:
        """Writes the claim again and again during a block, so that others see that this process lives."""
        ended = threading.Event()

        def beat() -> None:
            number = 0
            while not ended.wait(self._lease / 4):
                number += 1
                with contextlib.suppress(StoreError):  # at worst another process computes the unit too
                    self._folder.write(f"{folder_of(unit)}/claim.json", self._claim(number))

        thread = threading.Thread(target=beat, name="sonde-store-claim", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _compare(self, units: Iterable[int]) -> None:
        """Raises StoreError if units that are done were computed from other batches than those of this process."""
        new = [unit for unit in units if unit not in self._compared]
        self._compared.update(new)
        numbers = [number for unit in new for number in self._manifest.span(unit)]
        chosen = sorted(random.sample(numbers, COMPARED) if len(numbers) > COMPARED else numbers)
        inputs: dict[int, list[str]] = {}
        for number in chosen:
            if self._leaving():
                return
            unit = number // self._manifest.size
            if unit not in inputs:
                attempt = attempt_of(self._folder, self._manifest, unit)
                if attempt is None:  # this process leaves, and the unit is not done
                    continue
                part = part_of_unit(self._folder, self._storage, self._manifest, unit, attempt)
                self._check_arrays(unit, part.manifest)
                inputs = {unit: part.listed.inputs()}
            if checksums.of_batch(self._batches[number]).text() != inputs[unit][number - unit * self._manifest.size]:
                raise StoreError(
                    f"batch {number} of this process is not the one that unit {unit} of the store "
                    f"{self._folder.name!r} was computed from: all processes need the same batches in the same order. "
                    "Repeat the call that started the store, or choose another folder"
                )
