"""Random minibatches from long reads.

The rows are divided into blocks of neighbors. A seed puts the blocks in a random order; as many blocks as fit into the
window are read, each in one read, and minibatches of random rows are drawn until the window is empty. Meanwhile the
next window is read, into the memory of the one before: new memory for every window would cost more than the mixing. The
order of rows depends only on the seed, the sizes and the store.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import operator
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Sharding

from sonde.store.format.folder import tensorstore

if TYPE_CHECKING:
    from sonde.store.reading.reader import StoredArray

WINDOW_BYTES = 1 << 28
BLOCKS = 16  # in a window
AHEAD = 2  # minibatches on their way to a device


@dataclasses.dataclass(frozen=True)
class Position:
    """The position of an iterator.

    Attributes:
        epoch: The pass through the store.
        batch: The minibatch of that pass that comes next.
    """

    epoch: int = 0
    batch: int = 0


@dataclasses.dataclass(frozen=True)
class _Window:
    """Rows in memory, and the order in which they are drawn (None: as they are)."""

    rows: dict[str, np.ndarray]
    order: np.ndarray | None

    def taken(self, name: str, first: int, last: int, out: np.ndarray) -> None:
        """Copies the rows that are drawn from `first` to before `last` into an array."""
        if self.order is None:
            out[:] = self.rows[name][first:last]
        else:
            np.take(self.rows[name], self.order[first:last], axis=0, out=out, mode="clip")


class Minibatches(Iterator[dict[str, Any]]):
    """An iterator over minibatches; made by `Store.batches`."""

    def __init__(
        self,
        arrays: Mapping[str, StoredArray],
        identity: str,
        size: int,
        *,
        seed: int | None,
        window: int | None,
        row_axes: int,
        epochs: int | None,
        process: int,
        processes: int,
        device: Sharding | Any | None,
    ) -> None:
        size, row_axes, process, processes = map(operator.index, (size, row_axes, process, processes))
        least = (size, row_axes, *(n for n in (window, epochs) if n is not None))
        if min(least) < 1 or not 0 <= process < processes:
            raise ValueError(
                "batches: size, row_axes, window and epochs must be at least 1 and process below processes, got "
                f"{size=}, {row_axes=}, {window=}, {epochs=}, {process=}, {processes=}"
            )
        if not arrays:
            raise ValueError("batches: the store has no values")
        leads = {name: array.shape[:row_axes] for name, array in arrays.items()}
        if len(set(leads.values())) != 1 or any(len(lead) != row_axes for lead in leads.values()):
            raise ValueError(f"batches: the arrays do not have the same rows: {leads}; choose some by patterns")
        self._arrays, self._size, self._seed, self._axes, self._epochs = arrays, size, seed, row_axes, epochs
        lead = next(iter(leads.values()))
        inner = int(np.prod(lead[1:], dtype=np.int64))  # rows drawn per row of the store
        row_bytes = sum(a.nbytes // max(len(a), 1) for a in arrays.values())
        self._inner = inner
        whole = max(window // inner, 1) if window else max(WINDOW_BYTES // max(row_bytes, 1), 1)
        whole = min(max(whole, -(-size // inner)), max(lead[0], 1))
        block = whole
        if seed is not None:  # a block of whole chunks: part of a chunk costs as much to read as all of it
            chunk = max(array.rows_per_chunk for array in arrays.values())
            block = min(max(whole // BLOCKS // chunk * chunk, chunk), whole, max(lead[0] // (4 * processes), 1))
        self._blocks = [(start, min(start + block, lead[0])) for start in range(0, lead[0], block)]
        self._process, self._processes = process, processes
        self._per_window = max(whole // block, 1)
        self._state = self._next = Position()  # of what was returned last, and of what is drawn next
        self._device = device
        self._ahead: collections.deque[tuple[dict[str, jax.Array], Position]] = collections.deque()
        self._lock = threading.Lock()
        told = identity, list(leads.items()), size, seed, block, self._per_window, process, processes
        self._order_id = hashlib.sha256(repr(told).encode()).hexdigest()[:16]
        self._ends: tuple[int, np.ndarray, int] | None = None
        self._most = min(self._per_window * block, lead[0])  # rows of the store in a window
        self._windows: dict[tuple[int, int], concurrent.futures.Future[_Window]] = {}
        self._spare: list[dict[str, np.ndarray]] = []
        self._reader = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="sonde-store-reader")
        # An iterator that is dropped before its end must not leave its thread waiting; at exit, it ends by itself.
        weakref.finalize(self, self._reader.shutdown, wait=False, cancel_futures=True).atexit = False

    def __iter__(self) -> Minibatches:
        return self

    def __next__(self) -> dict[str, Any]:
        tensorstore()  # raises an error in a fork, whose thread would not read
        with self._lock:  # several threads may draw from one iterator
            if self._device is None:
                batch = self._drawn()
                self._state = self._next
                return batch
            with contextlib.suppress(StopIteration):
                while len(self._ahead) <= AHEAD:
                    self._ahead.append((self._placed(self._drawn()), self._next))
            if not self._ahead:
                raise StopIteration
            batch, self._state = self._ahead.popleft()
            return batch

    def _placed(self, batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
        """A minibatch on its way to the device; under `jax.distributed`, the rows of this process of a global one."""
        if isinstance(self._device, Sharding) and not self._device.is_fully_addressable:
            sharding = self._device
            return {name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()}
        return jax.device_put(batch, self._device)

    def _drawn(self) -> dict[str, np.ndarray]:
        at = self._next
        if self._epochs is not None and at.epoch >= self._epochs:
            raise StopIteration
        ends, total = self._window_ends(at.epoch)
        start, stop = at.batch * self._size, (at.batch + 1) * self._size
        if stop > total:
            if total < self._size:
                raise StopIteration
            self._next = Position(at.epoch + 1)
            return self._drawn()
        first, last = np.searchsorted(ends, [start, stop - 1], side="right")
        batch = {name: np.empty((self._size, *a.shape[self._axes :]), a.dtype) for name, a in self._arrays.items()}
        for number in range(int(first), int(last) + 1):
            before = int(ends[number - 1]) if number else 0
            low, high = max(start, before), min(stop, int(ends[number]))
            window = self._window(number, len(ends))
            for name, rows in batch.items():
                window.taken(name, low - before, high - before, rows[low - start : high - start])
        self._next = Position(at.epoch, at.batch + 1)
        return batch

    def get_state(self) -> dict[str, int | str]:
        """The position of the iterator, and what decides the order of its rows; can be stored as JSON."""
        return {**dataclasses.asdict(self._state), "order": self._order_id}

    def set_state(self, state: Mapping[str, int | str]) -> None:
        """Moves to the position of an iterator with the same arguments.

        Raises:
            ValueError: The state is that of an iterator whose rows come in another order.
        """
        whole = isinstance(state, Mapping) and state.keys() == {"epoch", "batch", "order"}
        epoch, batch = (state["epoch"], state["batch"]) if whole else (None, None)
        if type(epoch) is not int or type(batch) is not int or min(epoch, batch) < 0:
            raise ValueError(f"set_state takes what get_state returned, got {state!r}")
        if state["order"] != self._order_id:
            raise ValueError(
                "set_state: the state is of an iterator over another store, or with other arguments (size, patterns, "
                "shuffle, window, axes, process, processes): its rows come in another order"
            )
        with self._lock:
            self._state = self._next = Position(epoch, batch)
            self._ahead.clear()

    # -- windows -------------------------------------------------------------------------------------------------------

    def _order(self, epoch: int) -> np.ndarray:
        """All blocks in the order in which they are read; every process takes its share of them."""
        order = np.arange(len(self._blocks))
        return order if self._seed is None else self._random(epoch, 0).permutation(order)

    def _window_ends(self, epoch: int) -> tuple[np.ndarray, int]:
        """How many rows there are up to the end of each window; and how many in all, the same for every process."""
        if self._ends is None or self._ends[0] != epoch:
            sizes = np.array([high - low for low, high in self._blocks], np.int64)[self._order(epoch)] * self._inner
            shares = [sizes[i :: self._processes] for i in range(self._processes)]
            mine = shares[self._process]
            counts = [mine[i : i + self._per_window].sum() for i in range(0, len(mine), self._per_window)]
            self._ends = epoch, np.cumsum(counts, dtype=np.int64), int(min(share.sum() for share in shares))
        return self._ends[1:]

    def _window(self, number: int, n_windows: int) -> _Window:
        """A window of this pass; meanwhile the next one is read, into the memory of earlier ones."""
        at = self._next.epoch, number
        after = (at[0], at[1] + 1) if at[1] + 1 < n_windows else (at[0] + 1, 0)
        for known in [known for known in self._windows if known not in (at, after)]:
            reading = self._windows.pop(known)
            if reading.done() and not reading.exception():
                self._spare.append(reading.result().rows)
        for wanted in (at, after):
            if wanted not in self._windows and (self._epochs is None or wanted[0] < self._epochs):
                spare = self._spare.pop() if self._spare else None
                self._windows[wanted] = self._reader.submit(self._read, *wanted, spare)
        return self._windows[at].result()

    def _read(self, epoch: int, number: int, spare: dict[str, np.ndarray] | None) -> _Window:
        mine = self._order(epoch)[self._process :: self._processes]
        mine = mine[number * self._per_window : (number + 1) * self._per_window]
        spans = [self._blocks[i] for i in mine]
        n = sum(high - low for low, high in spans)
        order = self._random(epoch, number + 1).permutation(n * self._inner) if self._seed is not None else None
        rows = {}
        for name, array in self._arrays.items():
            into = spare[name].base if spare is not None else None
            if into is None or len(into) < n:
                into = np.empty((max(n, self._most), *array.shape[1:]), array.dtype)
            array.read_spans(spans, into[:n])
            rows[name] = into[:n].reshape(n * self._inner, *array.shape[self._axes :])
        return _Window(rows, order)

    def _random(self, epoch: int, use: int) -> np.random.Generator:
        return np.random.default_rng([abs(self._seed or 0), epoch, use])

    def __repr__(self) -> str:
        state: Any = self.get_state()
        return f"<minibatches of {self._size} rows from {len(self._arrays)} arrays, at {state}>"
