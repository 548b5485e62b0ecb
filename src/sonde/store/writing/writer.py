"""Writing while the device computes the next batches.

The program passes on arrays that may still be computed. One thread waits for them and stages them until they fill
files; another one then writes them, some arrays at a time, and replaces the progress file: only then do the batches
count. A file of the store is not read back, except one that had to be written before it was full.

The bytes between the program and the disk are bounded; at the bound, the program waits. What does not fit in memory
until it fills files waits on the disk, in a file without a name (`spill.py`): so files are large however little memory
there is.
"""

from __future__ import annotations

import collections
import concurrent.futures
import ctypes
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
from sonde.store.writing.spill import Spill, Spilled

COPIES = 4  # of what is being written: as it was read back, put together, as TensorStore holds it, encoded
GROUPS = 2  # of arrays that are being written at a time
# Shares of the memory: all that is not yet written; what is being encoded; what the allocator may keep.
PROGRAM_SHARE, WRITE_SHARE, TRIM_SHARE = 0.3, 0.3, 0.2
STAGED_BYTES = 1 << 28  # of batches that wait to fill files, in memory or on the disk
SECONDS = 10.0  # a batch waits at most this long for others to fill a file


@dataclasses.dataclass
class _Job:
    outcome: BatchOutcome
    checksum: BatchSum
    nbytes: int


class _Staged:
    """Batches that are written together.

    Attributes:
        pieces: Their rows, by array: in memory, or on the disk.
        entries: Their entries in the progress file.
        n_batches: How many they are.
        in_memory: How many bytes of the pieces are in memory.
        since: When the first of them came.
    """

    def __init__(self, n_arrays: int, folder: Folder) -> None:
        self.pieces: list[list[rows.Piece | Spilled]] = [[] for _ in range(n_arrays)]
        self.entries: list[Entry] = []
        self.n_batches, self.in_memory = 0, 0
        self.since = time.monotonic()
        self._spill = Spill(folder)
        self.close = self._spill.close

    def spill(self) -> int:
        """Moves pieces from memory to the disk; returns how many bytes."""
        for of_array in self.pieces:
            for number, piece in enumerate(of_array):
                if isinstance(piece, rows.Piece):
                    of_array[number] = self._spill.put(piece)
        moved, self.in_memory = self.in_memory, 0
        return moved

    def taken(self, number: int) -> tuple[list[rows.Piece], int]:
        """The pieces of an array, in memory, and how many bytes of them were there before. They are let go here."""
        of_array, self.pieces[number] = self.pieces[number], []
        in_memory = sum(piece.data.nbytes for piece in of_array if isinstance(piece, rows.Piece))
        return [p if isinstance(p, rows.Piece) else self._spill.taken(p) for p in of_array], in_memory


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
        self._file.take(progress)
        self._memory, self._file_batches, self._hurry = memory, file_batches, hurry
        self._arrays = [zarr_arrays.open_for_writing(folder, info) for info in infos]
        self._digesters = [Digester(info.chunk_rows) for info in infos]
        # With several processes, a batch counts when all have written it: each is listed by itself.
        self._lists_each = manifest.writers > 1
        self._rows = progress.rows  # when all that is staged is written
        self._batches = progress.batches
        self._inputs: list[str] = []  # of the batches that are staged and not yet in an entry
        self._staged: _Staged | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._in_flight = 0
        self._blocked = False  # whether the program waits for something to be written
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # Before Python 3.13, a thread whose `join` was interrupted counts as ended: a second `join` does not wait.
        self._ended = threading.Event()
        self._let_go = 0  # bytes that the allocator may still keep
        self._disk = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="sonde-store-disk")
        self._writing: concurrent.futures.Future[None] | None = None

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
        """Writes the number of rows where other programs look for it. To be called when all processes have closed."""
        if self._is_first:
            self._folder.write_all(zarr_arrays.metadata_files(self.infos, self.progress.rows))

    # -- the thread that stages ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._stage(job)
                del job  # the arrays are let go as they are written
                if self._staged is not None and self._staged.n_batches >= self._file_batches:
                    self._hand_over()
            self._hand_over()
            self._wait_for_disk()
        except Exception as error:
            self._fail(error)
        finally:
            if self._staged is not None:
                self._staged.close()
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
                if self._blocked:
                    self._release(staged.spill())
                if self._hurry() or time.monotonic() - staged.since > SECONDS:
                    self._hand_over()

    def _stage(self, job: _Job) -> None:
        self._check_range(job.outcome)
        staged = self._staged = self._staged or _Staged(len(self.infos), self._folder)
        mask = None if job.outcome.mask is None else np.asarray(job.outcome.mask)
        rows_after, nbytes = [], 0
        for start, array, digester, of_array in zip(self._rows, job.outcome.arrays, self._digesters, staged.pieces):
            rows_after.append(start + rows.count(array, mask))
            for piece in rows.pieces(array, mask, start):
                digester.add(piece)
                of_array.append(piece)
                nbytes += piece.data.nbytes
        self._rows, self._batches = tuple(rows_after), self._batches + 1
        self._release(job.nbytes - nbytes)  # rows that are not kept
        staged.in_memory += nbytes
        staged.n_batches += 1
        # Two more batches must fit, or the program would wait for the disk.
        fits = staged.in_memory + 2 * job.nbytes <= PROGRAM_SHARE * self._memory
        if not fits and staged.n_batches < self._file_batches:
            self._release(staged.spill())
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
        """Has what is staged written, when what was staged before is."""
        self._wait_for_disk()
        staged, self._staged = self._staged, None
        if staged is not None:
            self._end_entry(staged)
            self._writing = self._disk.submit(self._write, staged)

    def _wait_for_disk(self) -> None:
        if self._writing is not None:
            self._writing.result()
        if self.error is not None:
            raise self.error

    # -- the thread that writes ----------------------------------------------------------------------------------------

    def _write(self, staged: _Staged) -> None:
        """Writes what is staged, and lists it."""
        try:
            self._write_arrays(staged)
            progress = self.progress
            for entry in staged.entries:
                progress = progress.plus(entry)
            self.progress = self._file.write(progress)
        except Exception as error:
            self._fail(error)
        finally:
            staged.close()

    def _write_arrays(self, staged: _Staged) -> None:
        commits: collections.deque[tuple[Any, int, int]] = collections.deque()
        transaction, nbytes, of_program = None, 0, 0
        for number, array in enumerate(self._arrays):
            transaction = transaction or tensorstore().Transaction()
            pieces, in_memory = staged.taken(number)
            nbytes += sum(piece.data.nbytes for piece in pieces)
            of_program += in_memory
            target = array.with_transaction(transaction)
            written = [
                target.oindex[(piece.rows, *piece.columns)].write(piece.data) for piece in rows.put_together(pieces)
            ]
            for future in written:
                self._folder.wait(future)
            if nbytes * COPIES * GROUPS >= WRITE_SHARE * self._memory:
                commits.append((transaction.commit_async(), nbytes, of_program))
                transaction, nbytes, of_program = None, 0, 0
            while len(commits) >= GROUPS:
                self._settle(*commits.popleft())
        if transaction is not None:
            commits.append((transaction.commit_async(), nbytes, of_program))
        for commit in commits:
            self._settle(*commit)

    def _settle(self, commit: Any, nbytes: int, of_program: int) -> None:
        """Waits until some arrays are written, of which the program waits for some bytes."""
        self._folder.wait(commit, GROUPS * nbytes)
        self._release(of_program)
        self._let_go += COPIES * nbytes
        if self._let_go > TRIM_SHARE * self._memory:
            self._let_go = 0
            _trim()

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


def _trim() -> None:
    """Gives free memory back to the system. Linux's allocator keeps it, for each of TensorStore's threads."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def batches_at_a_time(outcome: BatchOutcome, memory: int) -> int:
    """How many batches to write at a time: as many as fill a file of the largest array."""
    sizes = [local_bytes(array) for array in outcome.arrays]
    file_bytes = min(zarr_arrays.FILE_BYTES, int(WRITE_SHARE * memory) // (COPIES * GROUPS))
    by_file = file_bytes // max(1, max(sizes, default=1))
    return max(1, min(by_file, STAGED_BYTES // max(1, sum(sizes))))
