"""Writing while the device computes the next batch.

The program passes on arrays that may still be computed; a thread waits for them, copies them to the host and stages
them in a transaction, which covers one or more batches. When a transaction is committed, the progress file is replaced:
only then do its batches count. The bytes between the program and the disk are bounded; at the bound, the program waits.
"""

from __future__ import annotations

import collections
import dataclasses
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sonde.errors import StoreError
from sonde.store import rows, zarr_arrays
from sonde.store.checksums import BatchSum
from sonde.store.digests import Digester
from sonde.store.folder import Folder, tensorstore
from sonde.store.manifest import Manifest
from sonde.store.program import BatchOutcome, what_fits
from sonde.store.progress import Entry, Progress, ProgressFile

COPIES = 3  # of a batch between program and disk: the array, the staged copy, the encoded one
SECONDS = 10.0  # a batch waits at most this long for others to fill a file
COMMITS = 2  # transactions on their way to the disk at a time


@dataclasses.dataclass
class _Job:
    outcome: BatchOutcome
    checksum: BatchSum
    nbytes: int


class Writer:
    """Writes the outcomes of batches, in order, in its own thread.

    Args:
        folder: The store.
        manifest: Its manifest.
        progress: What this process has written before.
        process: The number of this process.
        memory: How many bytes may be on their way to the disk.
        file_batches: How many batches fill a file.
        hurry: Tells whether to write at once, without waiting for files to be filled.

    Attributes:
        infos: The arrays, in the order of the outcomes.
        progress: How much is written.
        error: The error, if any. After it nothing is written.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        progress: Progress,
        *,
        process: int,
        memory: int,
        file_batches: int,
        hurry: Callable[[], bool],
    ) -> None:
        self.progress = progress
        self.infos = infos = manifest.arrays
        self.error: Exception | None = None
        self._folder, self._is_first = folder, process == 0
        self._file = ProgressFile(folder, manifest, process)
        self._memory, self._file_batches, self._hurry = memory, file_batches, hurry
        self._arrays = [zarr_arrays.open_for_writing(folder, info) for info in infos]
        self._digesters = [Digester(info.chunk_rows) for info in infos]
        # With several processes, a batch counts when all have written it: each is listed by itself.
        self._lists_each = manifest.writers > 1
        self._rows = progress.rows  # when all that is staged is written
        self._batches = progress.batches
        self._inputs: list[str] = []  # of the batches that are staged and not yet in an entry
        self._entries: list[Entry] = []  # of the open transaction
        self._transaction: Any = None
        self._opened = 0.0
        self._held = 0  # bytes of the open transaction
        self._batches_held = 0
        self._commits: collections.deque[tuple[Any, list[Entry], int]] = collections.deque()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._in_flight = 0
        self._blocked = False  # whether the program waits for something to be written
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, outcome: BatchOutcome, checksum: BatchSum) -> None:
        """Takes the outcome of the next batch; its mask must be complete on this process.

        Waits while there is too much to write. Does nothing after an error.
        """
        nbytes = COPIES * sum(local_bytes(x) for x in outcome.arrays)
        with self._changed:
            self._blocked = True
            self._changed.wait_for(
                lambda: self.error or not self._in_flight or self._in_flight + nbytes <= self._memory
            )
            self._blocked = False
            if self.error is not None:
                return
            self._in_flight += nbytes
        for array in (*outcome.arrays, outcome.mask):
            if isinstance(array, jax.Array):
                array.copy_to_host_async()
        self._jobs.put(_Job(outcome, checksum, nbytes))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="sonde-store-writer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Writes the rest and waits until it is written, or for an error."""
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()

    def finish(self) -> None:
        """Marks the harvest as complete. To be called when all processes have closed."""
        self.progress = self._file.write(dataclasses.replace(self.progress, finished=True))

    def tell_other_readers(self) -> None:
        """Writes the number of rows where other programs look for it. To be called when all processes have closed."""
        if self._is_first:
            self._folder.write_all(zarr_arrays.metadata_files(self.infos, self.progress.rows))

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._stage(job)
                if self._batches_held >= self._file_batches or COPIES * self._held > self._memory // 4:
                    self._commit()
            self._commit()
            self._settle(0)
        except Exception as error:
            known = error if isinstance(error, StoreError) else self._folder.failed(error)
            with self._changed:
                self.error = known
                self._changed.notify_all()

    def _next(self) -> _Job | None:
        while True:
            self._settle(COMMITS)
            try:
                return self._jobs.get(timeout=0.05 if self._transaction or self._commits else None)
            except queue.Empty:
                self._settle(COMMITS, wait=False)
                late = self._blocked or self._hurry() or time.monotonic() - self._opened > SECONDS
                if self._transaction and late:
                    self._commit()

    def _stage(self, job: _Job) -> None:
        self._check_range(job.outcome)
        if self._transaction is None:
            self._transaction, self._opened = tensorstore().Transaction(), time.monotonic()
        mask = None if job.outcome.mask is None else np.asarray(job.outcome.mask)
        rows_after = []
        written = []
        for i, (start, array) in enumerate(zip(self._rows, job.outcome.arrays)):
            rows_after.append(start + rows.count(array, mask))
            target = self._arrays[i].with_transaction(self._transaction)
            for piece in rows.pieces(array, mask, start):
                self._digesters[i].add(piece)
                written.append(target.oindex[(piece.rows, *piece.columns)].write(piece.data))
        for future in written:
            self._folder.wait(future)
        self._rows, self._batches = tuple(rows_after), self._batches + 1
        self._inputs.append(job.checksum.text())
        if self._lists_each:
            self._end_entry()
        self._held += job.nbytes // COPIES
        self._batches_held += 1

    def _end_entry(self) -> None:
        """Describes the batches that were staged since the last entry."""
        if self._inputs:
            runs = tuple(tuple(digester.taken()) for digester in self._digesters)
            self._entries.append(Entry(self._batches - len(self._inputs), tuple(self._inputs), self._rows, runs))
            self._inputs = []

    def _commit(self) -> None:
        if self._transaction is None:
            return
        self._end_entry()
        self._commits.append((self._transaction.commit_async(), self._entries, COPIES * self._held))
        self._transaction, self._held, self._batches_held, self._entries = None, 0, 0, []

    def _settle(self, most: int, *, wait: bool = True) -> None:
        """Notes which commits are done; waits until at most a given number are not."""
        while self._commits and (self._commits[0][0].done() or (wait and len(self._commits) > most)):
            future, entries, nbytes = self._commits.popleft()
            self._folder.wait(future, COMMITS * nbytes)
            progress = self.progress
            for entry in entries:
                progress = progress.plus(entry)
            progress = self._file.write(progress)
            with self._changed:
                self.progress = progress
                self._in_flight -= nbytes
                self._changed.notify_all()

    def _check_range(self, outcome: BatchOutcome) -> None:
        beyond = np.asarray(outcome.beyond.addressable_shards[0].data)
        for info, lost in zip(self.infos, beyond):
            if lost:
                raise StoreError(
                    f"harvest: {int(lost)} numbers of {info.name!r} in batch {self._batches} do not fit "
                    f"{info.dtype} ({what_fits(info.dtype)}); store them as bfloat16 or float32 (dtype=), in another "
                    "folder"
                )


def local_bytes(array: Any) -> int:
    """The bytes of an array that this process writes."""
    return sum(s.data.nbytes for s in array.addressable_shards if not s.replica_id)
