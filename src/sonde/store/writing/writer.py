"""Writing while the device computes the next batches.

The program passes on arrays that may still be computed. One thread waits for them and writes their rows to their files;
another one then makes sure that they stay there, and replaces the progress file: only then do the batches count. No
file is written twice, and rows wait nowhere.

What is between the program and the disk is bounded; at the bound, the program waits.
"""

from __future__ import annotations

import concurrent.futures
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
from sonde.store.format.folder import Folder
from sonde.store.format.manifest import Manifest
from sonde.store.format.progress import Entry, Progress, ProgressFile
from sonde.store.format.row_files import COPIES, RowWriter, Written
from sonde.store.writing.program import BatchOutcome, what_fits

# Shares of the memory: batches that are computed and not yet written; objects on their way to a bucket. The allocator
# keeps as much again, in pieces, for the threads that compute.
PROGRAM_SHARE, SEND_SHARE = 0.3, 0.3
STAGED_BYTES = 1 << 28  # of batches that are written and not yet listed
SECONDS = 10.0  # a batch that is written is listed after this time at most


@dataclasses.dataclass
class _Job:
    outcome: BatchOutcome
    checksum: BatchSum
    nbytes: int


@dataclasses.dataclass
class _Staged:
    """Batches that are listed together.

    Attributes:
        entries: Their entries in the progress file.
        n_batches: How many they are.
        since: When the first of them came.
    """

    entries: list[Entry] = dataclasses.field(default_factory=list)
    n_batches: int = 0
    since: float = dataclasses.field(default_factory=time.monotonic)


class Writer:
    """Writes the outcomes of batches, in order, in its own thread.

    Args:
        folder: The store.
        manifest: Its manifest.
        progress: What this process has written before.
        process: The number of this process.
        memory: How many bytes may be on their way to the disk.
        file_batches: After how many batches to list them.
        hurry: Tells whether to list at once what is written.

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
        self._file.take(progress)
        self._memory, self._file_batches, self._hurry = memory, file_batches, hurry
        self._rows_to = RowWriter(folder, infos, int(SEND_SHARE * memory))
        self._digesters = [Digester(info.chunk_rows) for info in infos]
        # With several processes, a batch counts when all have written it: each is listed by itself.
        self._lists_each = manifest.writers > 1
        self._rows = progress.rows  # when all that is staged is written
        self._batches = progress.batches
        self._inputs: list[str] = []  # of the batches that are staged and not yet in an entry
        self._staged: _Staged | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._in_flight = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # Before Python 3.13, a thread whose `join` was interrupted counts as ended: a second `join` does not wait.
        self._ended = threading.Event()
        self._disk = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="sonde-store-disk")
        self._writing: concurrent.futures.Future[None] | None = None

    def put(self, outcome: BatchOutcome, checksum: BatchSum) -> None:
        """Takes the outcome of the next batch; its mask must be complete on this process.

        Waits until there is memory for another such batch. Does nothing after an error.
        """
        nbytes = sum(local_bytes(x) for x in outcome.arrays)
        with self._changed:
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
        with self._changed:
            self._changed.wait_for(
                lambda: self.error or not self._in_flight or self._in_flight + nbytes <= PROGRAM_SHARE * self._memory
            )

    def close(self) -> None:
        """Writes the rest and waits until it is written, or for an error.

        If that is interrupted, it waits for what is being written, and no more is.
        """
        if self._thread is None:
            return
        try:
            self._jobs.put(None)
            self._ended.wait()
        except BaseException:
            self._fail(StoreError("the harvest was interrupted"))
            self._jobs.put(None)
            self._ended.wait()
            raise

    def finish(self) -> None:
        """Marks the harvest as complete. To be called when all processes have closed."""
        self.progress = self._file.write(dataclasses.replace(self.progress, finished=True))

    def tell_other_readers(self) -> None:
        """Makes the store readable for other programs. To be called when all processes have closed."""
        if self._is_first:
            self._rows_to.complete(self.progress.rows)
            self._folder.write_all(zarr_arrays.metadata_files(self.infos, self.progress.rows))

    # -- the thread that stages ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._stage(job)
                nbytes = job.nbytes
                del job
                self._release(nbytes)
                if self._staged is not None and self._staged.n_batches >= self._file_batches:
                    self._hand_over()
            self._hand_over()
            self._wait_for_disk()
        except Exception as error:
            self._fail(error)
        finally:
            self._disk.shutdown()
            self._ended.set()

    def _fail(self, error: Exception) -> None:
        known = error if isinstance(error, StoreError) else self._folder.failed(error)
        with self._changed:
            self.error = self.error or known
            self._changed.notify_all()

    def _next(self) -> _Job | None:
        while True:
            try:
                return self._jobs.get(timeout=None if self._staged is None else 0.05)
            except queue.Empty:
                staged = self._staged
                if staged is None:
                    continue
                if self._hurry() or time.monotonic() - staged.since > SECONDS:
                    self._hand_over()

    def _stage(self, job: _Job) -> None:
        self._check_range(job.outcome)
        staged = self._staged = self._staged or _Staged()
        mask = None if job.outcome.mask is None else np.asarray(job.outcome.mask)
        rows_after = []
        for number, (start, array) in enumerate(zip(self._rows, job.outcome.arrays)):
            rows_after.append(start + rows.count(array, mask))
            for piece in rows.pieces(array, mask, start):
                self._digesters[number].add(piece)
                self._rows_to.write(number, piece)
        self._rows, self._batches = tuple(rows_after), self._batches + 1
        staged.n_batches += 1
        self._inputs.append(job.checksum.text())
        if self._lists_each:
            self._end_entry(staged)

    def _end_entry(self, staged: _Staged) -> None:
        """Describes the batches that were staged since the last entry."""
        if self._inputs:
            runs = tuple(tuple(digester.taken()) for digester in self._digesters)
            staged.entries.append(Entry(self._batches - len(self._inputs), tuple(self._inputs), self._rows, runs))
            self._inputs = []

    def _hand_over(self) -> None:
        """Has what is staged listed, when what was staged before is."""
        self._wait_for_disk()
        staged, self._staged = self._staged, None
        if staged is not None:
            self._end_entry(staged)
            self._writing = self._disk.submit(self._list, staged, self._rows_to.taken())

    def _wait_for_disk(self) -> None:
        if self._writing is not None:
            self._writing.result()
        if self.error is not None:
            raise self.error

    # -- the thread that lists -----------------------------------------------------------------------------------------

    def _list(self, staged: _Staged, written: Written) -> None:
        try:
            self._rows_to.settle(written)
            progress = self.progress
            for entry in staged.entries:
                progress = progress.plus(entry)
            self.progress = self._file.write(progress)
        except Exception as error:
            self._fail(error)

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


def batches_at_a_time(outcome: BatchOutcome, folder: Folder, memory: int) -> int:
    """How many batches to list at a time: as many as fill a file of the largest array."""
    sizes = [local_bytes(array) for array in outcome.arrays]
    file_bytes = zarr_arrays.FILE_BYTES
    if folder.local_path is None:  # an object is sent as a whole
        file_bytes = min(file_bytes, int(SEND_SHARE * memory) // (2 * COPIES))
    return max(1, min(file_bytes // max(1, max(sizes, default=1)), STAGED_BYTES // max(1, sum(sizes))))
