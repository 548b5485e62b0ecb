"""Writing while the device computes the next batches.

The program passes on arrays that may still be computed; a thread waits for them and keeps them until they fill files.
Then it writes them, some arrays at a time, and replaces the progress file: only then do the batches count. Data is
never read back, except for a file that had to be written before it was full.

The bytes between the program and the disk are bounded; at the bound, the program waits. Of the bound, a part is for
batches that wait to fill files, as much for those that come meanwhile, and the rest for what is being encoded.
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
from sonde.store.format import rows, zarr_arrays
from sonde.store.format.checksums import BatchSum
from sonde.store.format.digests import Digester
from sonde.store.format.folder import Folder, tensorstore
from sonde.store.format.manifest import Manifest
from sonde.store.format.progress import Entry, Progress, ProgressFile
from sonde.store.writing.program import BatchOutcome, what_fits

COPIES = 3  # of what is being written: put together, as TensorStore holds it, encoded
GROUPS = 2  # of arrays that are being written at a time
# Shares of the memory: batches that wait to fill files; all that is not yet written; what is being encoded. The rest is
# for what the allocator keeps.
FILL_SHARE, PROGRAM_SHARE, WRITE_SHARE = 0.15, 0.35, 0.3
SECONDS = 10.0  # a batch waits at most this long for others to fill a file


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
        file_batches: After how many batches to write.
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
        self._entries: list[Entry] = []  # of what is staged
        self._pieces: list[list[rows.Piece]] = [[] for _ in infos]  # what is staged, by array
        self._batches_staged = 0
        self._staged_since = 0.0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._in_flight = 0
        self._blocked = False  # whether the program waits for something to be written
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, outcome: BatchOutcome, checksum: BatchSum) -> None:
        """Takes the outcome of the next batch; its mask must be complete on this process.

        Waits while there is too much to write. Does nothing after an error.
        """
        nbytes = sum(local_bytes(x) for x in outcome.arrays)
        with self._changed:
            self._blocked = True
            self._changed.wait_for(
                lambda: self.error or not self._in_flight or self._in_flight + nbytes <= PROGRAM_SHARE * self._memory
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
                del job  # the arrays are let go as they are written
                if self._batches_staged >= self._file_batches:
                    self._write()
            self._write()
        except Exception as error:
            known = error if isinstance(error, StoreError) else self._folder.failed(error)
            with self._changed:
                self.error = known
                self._changed.notify_all()

    def _next(self) -> _Job | None:
        while True:
            try:
                return self._jobs.get(timeout=0.05 if self._batches_staged else None)
            except queue.Empty:
                if self._blocked or self._hurry() or time.monotonic() - self._staged_since > SECONDS:
                    self._write()

    def _stage(self, job: _Job) -> None:
        self._check_range(job.outcome)
        if not self._batches_staged:
            self._staged_since = time.monotonic()
        mask = None if job.outcome.mask is None else np.asarray(job.outcome.mask)
        rows_after, new = [], []
        for start, array, digester, staged in zip(self._rows, job.outcome.arrays, self._digesters, self._pieces):
            rows_after.append(start + rows.count(array, mask))
            for piece in rows.pieces(array, mask, start):
                digester.add(piece)
                staged.append(piece)
                new.append(piece)
        self._rows, self._batches = tuple(rows_after), self._batches + 1
        self._release(job.nbytes - sum(piece.data.nbytes for piece in new))  # rows that are not kept
        self._inputs.append(job.checksum.text())
        self._batches_staged += 1
        if self._lists_each:
            self._end_entry()

    def _end_entry(self) -> None:
        """Describes the batches that were staged since the last entry."""
        if self._inputs:
            runs = tuple(tuple(digester.taken()) for digester in self._digesters)
            self._entries.append(Entry(self._batches - len(self._inputs), tuple(self._inputs), self._rows, runs))
            self._inputs = []

    def _write(self) -> None:
        """Writes what is staged, and lists it."""
        if not self._batches_staged:
            return
        self._end_entry()
        commits: collections.deque[tuple[Any, int]] = collections.deque()
        transaction, nbytes = None, 0
        for array, staged in zip(self._arrays, self._pieces):
            transaction = transaction or tensorstore().Transaction()
            nbytes += sum(piece.data.nbytes for piece in staged)
            target = array.with_transaction(transaction)
            written = [
                target.oindex[(piece.rows, *piece.columns)].write(piece.data) for piece in rows.put_together(staged)
            ]
            for future in written:
                self._folder.wait(future)
            if nbytes * COPIES * GROUPS >= WRITE_SHARE * self._memory:
                commits.append((transaction.commit_async(), nbytes))
                transaction, nbytes = None, 0
            while len(commits) >= GROUPS:
                self._settle(*commits.popleft())
        if transaction is not None:
            commits.append((transaction.commit_async(), nbytes))
        for commit in commits:
            self._settle(*commit)
        progress = self.progress
        for entry in self._entries:
            progress = progress.plus(entry)
        self.progress = self._file.write(progress)
        self._entries, self._batches_staged = [], 0

    def _settle(self, commit: Any, nbytes: int) -> None:
        """Waits until some arrays are written."""
        self._folder.wait(commit, GROUPS * nbytes)
        self._release(nbytes)

    def _release(self, nbytes: int) -> None:
        """Lets the program go on, if it waits for memory."""
        with self._changed:
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


def batches_at_a_time(outcome: BatchOutcome, memory: int) -> int:
    """How many batches to write at a time: as many as fill a file of the largest array, if the memory is enough."""
    sizes = [local_bytes(array) for array in outcome.arrays]
    by_file = zarr_arrays.FILE_BYTES // max(1, max(sizes, default=1))
    by_memory = int(FILL_SHARE * memory) // max(1, sum(sizes))
    return max(1, min(by_file, by_memory))
