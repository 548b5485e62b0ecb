"""Writing while the device computes the next batch.

The program hands over arrays that may still be computed; a thread waits for them, copies them to the host and stages
them in a transaction, which covers one or more batches. When a transaction is committed, the file of progress is
replaced: only then do its batches count. The bytes between the program and the disk are bounded; when they reach the
bound, the program waits.
"""

from __future__ import annotations

import collections
import dataclasses
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sonde.errors import StoreError
from sonde.store import rows, zarr_arrays
from sonde.store.folder import Folder, tensorstore
from sonde.store.manifest import ArrayInfo, Progress, write_progress
from sonde.store.program import Outcome

COPIES = 3  # of a batch between program and disk: the array, the staged copy, the encoded one
SECONDS = 10.0  # after this long a batch does not wait for others to fill a file
COMMITS = 2  # transactions on their way to the disk at a time


@dataclasses.dataclass
class _Job:
    outcome: Outcome
    mask: np.ndarray | None
    checksum: str
    nbytes: int


class Writer:
    """Writes the outcomes of batches, in order, from a thread of its own.

    Attributes:
        infos: The arrays, in the order of the outcomes.
        progress: How far the writing has come.
    """

    def __init__(
        self,
        folder: Folder,
        infos: Sequence[ArrayInfo],
        progress: Progress,
        *,
        process: int,
        memory: int,
        file_batches: int,
    ) -> None:
        self.progress = progress
        self.infos = infos
        self._folder, self._process = folder, process
        self._memory, self._file_batches = memory, file_batches
        self._arrays = [zarr_arrays.open_array(folder, info, cache=0) for info in infos]
        self._staged = progress  # what the progress will be when all that is staged is written
        self._transaction: Any = None
        self._opened = 0.0
        self._held = 0  # bytes of the open transaction
        self._batches_held = 0
        self._commits: collections.deque[tuple[Any, Progress, int]] = collections.deque()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._in_flight = 0
        self._blocked = False  # whether the program waits for something to be written
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="sonde-store-writer", daemon=True)
        self._thread.start()

    def put(self, outcome: Outcome, mask: np.ndarray | None, checksum: str) -> None:
        """Takes the outcome of the next batch; waits while there is too much to write."""
        nbytes = COPIES * sum(local_bytes(x) for x in outcome.arrays)
        with self._changed:
            self._blocked = True
            self._changed.wait_for(
                lambda: self._error or not self._in_flight or self._in_flight + nbytes <= self._memory
            )
            self._blocked = False
            self._raise()
            self._in_flight += nbytes
        for array in outcome.arrays:
            if isinstance(array, jax.Array):
                array.copy_to_host_async()
        self._jobs.put(_Job(outcome, mask, checksum, nbytes))

    def close(self) -> None:
        """Writes what is left and waits for it."""
        self._jobs.put(None)
        self._thread.join()
        self._raise()

    def finish(self, *, trim: bool) -> None:
        """Says that the harvest came to its end.

        Args:
            trim: Whether this process cuts the arrays to the rows that they have.
        """
        if trim:
            for info, array in zip(self.infos, self._arrays):
                zarr_arrays.trimmed(array, self.progress.rows.get(info.name, 0))
        self.progress = dataclasses.replace(self.progress, finished=True)
        write_progress(self._folder, self._process, self.progress)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._stage(job)
                if self._batches_held >= self._file_batches or COPIES * self._held > self._memory // 4:
                    self._commit()
            self._commit()
            self._settle(0)
        except BaseException as error:
            known = error if isinstance(error, StoreError) else self._folder.failed(error)
            with self._changed:
                self._error = known
                self._changed.notify_all()

    def _next(self) -> _Job | None:
        while True:
            self._settle(COMMITS)
            try:
                return self._jobs.get(timeout=0.05 if self._transaction or self._commits else None)
            except queue.Empty:
                self._settle(COMMITS, wait=False)
                if self._transaction and (self._blocked or time.monotonic() - self._opened > SECONDS):
                    self._commit()

    def _stage(self, job: _Job) -> None:
        self._check_range(job.outcome)
        if self._transaction is None:
            self._transaction, self._opened = tensorstore().Transaction(), time.monotonic()
        after = dict(self._staged.rows)
        written = []
        for i, (info, array) in enumerate(zip(self.infos, job.outcome.arrays)):
            start = after.get(info.name, 0)
            after[info.name] = start + rows.count(array, job.mask)
            self._arrays[i] = zarr_arrays.grown(self._arrays[i], after[info.name])
            target = self._arrays[i].with_transaction(self._transaction)
            for piece in rows.pieces(array, job.mask, start):
                written.append(target.oindex[(piece.rows, *piece.columns)].write(piece.data))
        for future in written:
            future.result()
        self._staged = dataclasses.replace(
            self._staged, batches=self._staged.batches + 1, rows=after, last=job.checksum, finished=False
        )
        self._held += job.nbytes // COPIES
        self._batches_held += 1

    def _commit(self) -> None:
        if self._transaction is None:
            return
        self._commits.append((self._transaction.commit_async(), self._staged, COPIES * self._held))
        self._transaction, self._held, self._batches_held = None, 0, 0

    def _settle(self, most: int, *, wait: bool = True) -> None:
        """Notes which commits are done; waits until at most so many are not."""
        while self._commits and (self._commits[0][0].done() or (wait and len(self._commits) > most)):
            future, progress, nbytes = self._commits.popleft()
            future.result()
            write_progress(self._folder, self._process, progress)
            with self._changed:
                self.progress = progress
                self._in_flight -= nbytes
                self._changed.notify_all()

    def _check_range(self, outcome: Outcome) -> None:
        beyond = np.asarray(outcome.beyond.addressable_shards[0].data)
        for info, lost in zip(self.infos, beyond):
            if lost:
                raise StoreError(
                    f"harvest: {int(lost)} numbers of {info.name!r} in batch {self._staged.batches} are too large for "
                    f"{info.dtype}; store them as bfloat16 or float32 (dtype=), in another folder"
                )


def local_bytes(array: Any) -> int:
    """The bytes of an array that this process writes."""
    return sum(s.data.nbytes for s in array.addressable_shards if not s.replica_id)
