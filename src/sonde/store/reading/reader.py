"""Reading a store: lazy arrays by path."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jax.sharding import Sharding

from sonde._array_text import describe
from sonde._renames import accepts_old_keywords
from sonde.core import ByPath, glob_matches, no_such_site
from sonde.store.format.folder import Folder, PathLike
from sonde.store.format.manifest import ArrayInfo
from sonde.store.format.parts import Part, parts_of
from sonde.store.format.storage import Storage
from sonde.store.format.zarr_arrays import dtype_of
from sonde.store.reading.minibatches import Minibatches
from sonde.store.reading.verified_rows import JoinedRows, RowReader


class StoredArray:
    """An array on disk. Indexing reads only the selected part.

    Attributes:
        path: The path of the site.
        kind: `"values"`, `"grads"`, `"taken"` or `"keys"`.
        shape: Rows first.
        dtype: The dtype.
        rows_per_chunk: How many rows are verified together: the smallest unit that is read.
    """

    def __init__(self, info: ArrayInfo, n_rows: int, reader: RowReader | JoinedRows) -> None:
        self.path, self.kind = info.path, info.kind
        self.shape = (n_rows, *info.row)
        self.dtype = dtype_of(info)
        self.rows_per_chunk = info.chunk_rows
        self._reader = reader

    @property
    def ndim(self) -> int:
        """How many axes there are, rows included."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the array in memory."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        (wanted_rows, *columns), flips = _plain_index(index, self.shape)
        if isinstance(wanted_rows, slice):
            rows = np.arange(wanted_rows.start, wanted_rows.stop, wanted_rows.step)
        else:
            rows = np.atleast_1d(wanted_rows)
        row_shape = _outer(np.broadcast_to(np.empty((), self.dtype), (1, *self.shape[1:])), columns).shape[1:]
        values = np.empty((len(rows), *row_shape), self.dtype)
        whole = all(isinstance(part, slice) and part == slice(0, n) for part, n in zip(columns, self.shape[1:]))
        if whole and isinstance(wanted_rows, slice) and wanted_rows.step is None:
            self.read_spans([(wanted_rows.start, wanted_rows.stop)], values)
            return np.flip(values, flips) if flips else values
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        for first, data in self._reader.blocks(_spans(ordered, self.rows_per_chunk)):
            low, high = np.searchsorted(ordered, [first, first + len(data)])
            if high - low == len(data) and isinstance(wanted_rows, slice):  # all of them, in order
                values[low:high] = _outer(data, columns)
            else:
                values[order[low:high]] = _outer(data[ordered[low:high] - first], columns)
        if isinstance(wanted_rows, int):
            values = values[0]
        return np.flip(values, flips) if flips else values

    def read_spans(self, spans: Sequence[tuple[int, int]], into: np.ndarray) -> None:
        """Reads spans of rows, each from a first to before a last, into consecutive rows of an array."""
        start = 0
        for _, data in self._reader.blocks(spans, into):
            if not np.may_share_memory(data, into):
                into[start : start + len(data)] = data
            start += len(data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("an array of a store is on disk: reading makes a copy")
        return self[:] if dtype is None else self[:].astype(dtype)

    def __iter__(self) -> Iterator[np.ndarray]:
        for start in range(0, len(self), 1024):
            yield from self[start : start + 1024]

    def __repr__(self) -> str:
        return f"<{self.kind} of {self.path!r}: {describe(self)}>"


def _spans(rows: np.ndarray, near: int) -> list[tuple[int, int]]:
    """Spans of rows that hold all of these, which are in order; rows less than `near` apart are read together."""
    if not len(rows):
        return []
    breaks = np.flatnonzero(np.diff(rows) > near)
    firsts, lasts = rows[np.append(0, breaks + 1)], rows[np.append(breaks, len(rows) - 1)] + 1
    return list(zip(firsts.tolist(), lasts.tolist()))


def _outer(data: np.ndarray, columns: Sequence[Any]) -> np.ndarray:
    """Selects along every axis but the first, independently."""
    for axis in range(len(columns), 0, -1):
        data = data[(slice(None),) * axis + (columns[axis - 1],)]
    return data


def _plain_index(index: Any, shape: tuple[int, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """An index in TensorStore's form (without negative numbers), and the axes of the result to reverse."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if sum(part is Ellipsis for part in parts) > 1:
        raise IndexError("an index can have only one '...'")
    if Ellipsis not in [p if isinstance(p, type(Ellipsis)) else None for p in parts]:
        parts.append(Ellipsis)
    at = next(i for i, part in enumerate(parts) if part is Ellipsis)
    missing = len(shape) - (len(parts) - 1)
    if missing < 0:
        raise IndexError(f"{len(parts) - 1} indices for an array of {len(shape)} axes")
    parts[at : at + 1] = [slice(None)] * missing
    listed = [number for number, part in enumerate(parts) if not isinstance(part, slice) and np.ndim(part)]
    numbers = [number for number, part in enumerate(parts) if not isinstance(part, slice)]
    if len(listed) > 1 or (listed and numbers[-1] - numbers[0] >= len(numbers)):
        raise IndexError(
            "a list along one axis cannot be combined with one along another, or with a number beyond a slice: NumPy "
            "would not take them axis by axis. Index the array that was read"
        )
    plain, flips, axis = [], [], 0
    for part, size in zip(parts, shape):
        if isinstance(part, slice):
            start, stop, step = part.indices(size)
            if step < 0:
                count = len(range(start, stop, step))
                start, stop, step = start + (count - 1) * step, start + 1, -step
                flips.append(axis)
            plain.append(slice(start, max(stop, start), step) if step != 1 else slice(start, max(stop, start)))
            axis += 1
            continue
        numbers = np.asarray(part)
        if numbers.dtype == bool:
            if numbers.shape != (size,):
                raise IndexError(f"a mask of shape {numbers.shape} for an axis of {size}")
            numbers = np.flatnonzero(numbers)
        if numbers.ndim > 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise IndexError(f"an index must be a number, a slice or a list of numbers, got {part!r}")
        numbers = numbers.astype(np.int64)
        if ((numbers < -size) | (numbers >= size)).any():
            raise IndexError(f"index {part!r} is out of bounds for an axis of {size}")
        numbers = np.where(numbers < 0, numbers + size, numbers)
        plain.append(operator.index(numbers) if numbers.ndim == 0 else numbers)
        axis += numbers.ndim
    return tuple(plain), tuple(flips)


class _Arrays(ByPath[StoredArray]):
    """The arrays of one kind, by path."""

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.values())) or "(no arrays)"


class Store(_Arrays):
    """A harvest: the values at every site, by path.

    Attributes:
        folder: Its path or URL.
        request: The arguments of the harvest, as texts.
        identity: A text that no other store has.
        n_batches: How many batches it holds.
        finished: Whether the harvest is complete.
        grads: The gradients, by path.
        taken: For sites in a branch, whether it was taken, by path.
        row_keys: The arrays from `keys=`, by name.
    """

    def __init__(self, folder: Folder, parts: Sequence[Part], *, identity: str, finished: bool, verify: bool) -> None:
        def array(number: int, info: ArrayInfo) -> StoredArray:
            counts = [part.listed.rows[number] for part in parts]
            readers = [
                RowReader(part.folder, part.manifest.arrays[number], part.listed, number, verify=verify)
                for part in parts
            ]
            return StoredArray(info, sum(counts), readers[0] if len(parts) == 1 else JoinedRows(readers, counts))

        def of(kind: str) -> dict[str, StoredArray]:
            infos = enumerate(parts[0].manifest.arrays)
            return {info.path: array(number, info) for number, info in infos if info.kind == kind}

        super().__init__(of("values"))
        self.folder, self.request, self.identity = folder.name, parts[0].manifest.request, identity
        self.n_batches, self.finished = sum(part.listed.batches for part in parts), finished
        self.grads, self.taken, self.row_keys = _Arrays(of("grads")), _Arrays(of("taken")), _Arrays(of("keys"))

    @property
    def arrays(self) -> tuple[StoredArray, ...]:
        """All arrays, of every kind."""
        return (*self.values(), *self.grads.values(), *self.taken.values(), *self.row_keys.values())

    @accepts_old_keywords("sonde.store.Store.batches")
    def batches(
        self,
        size: int,
        *patterns: str,
        shuffle: bool = False,
        seed: int = 0,
        window: int | None = None,
        row_axes: int = 1,
        epochs: int | None = 1,
        process: int = 0,
        processes: int = 1,
        device: Sharding | Any | None = None,
    ) -> Minibatches:
        """Minibatches for training: random rows from long reads, with bounded memory.

        Args:
            size: How many rows a minibatch has. Rows left at the end of an epoch are dropped.
            *patterns: Which arrays; globs over paths. All values by default; keys of rows are included.
            shuffle: Whether rows are drawn at random; otherwise they come in the order of the store.
            seed: For the order of shuffled rows.
            window: How many rows are held in memory and mixed; by default as many as make 256 MiB.
            row_axes: How many of the first axes count as rows: with 2, arrays of examples by positions are read as
                rows of positions.
            epochs: How many passes over the store; None for no end.
            process: Which part of the store to read, when several processes train together.
            processes: How many there are.
            device: A device, or a sharding, to which the next minibatches are copied while this one is used. If other
                processes have part of the sharding, each gives its rows of a global minibatch. None for NumPy arrays.

        Returns:
            An iterator over dicts of arrays by path; with `get_state` and `set_state` it can be resumed.

        Example:
            >>> import tempfile
            >>> import jax.numpy as jnp, sonde
            >>> from sonde import store
            >>> f = lambda x: sonde.sow(x * 2, "h")
            >>> kept = store.harvest(f, [jnp.ones((100, 3))], tempfile.mkdtemp(), progress=False)
            >>> [batch["h"].shape for batch in kept.batches(40, shuffle=True)]
            [(40, 3), (40, 3)]
        """
        chosen = [a for path, a in self.items() if not patterns or any(glob_matches(p, path) for p in patterns)]
        for pattern in patterns:
            if not any(glob_matches(pattern, path) for path in self):
                raise no_such_site(pattern, self)
        named = {a.path: a for a in chosen} | {f"keys/{name}": a for name, a in self.row_keys.items()}
        return Minibatches(
            named,
            self.identity,
            size,
            seed=seed if shuffle else None,
            window=window,
            row_axes=row_axes,
            epochs=epochs,
            process=process,
            processes=processes,
            device=device,
        )

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not finished"
        head = f"store {self.folder!r}: {self.n_batches} batches, {state}"
        return "\n".join([head, *(f"  {array!r}" for array in self.arrays)])

    def _repr_html_(self) -> str:
        from sonde.store.reading.contents import tree

        return tree(self)

    def __rich__(self) -> Any:
        from sonde.store.reading.contents import table

        return table(self)


def open(folder: PathLike, *, verify: bool = True, storage: Storage | None = None) -> Store:
    """Opens a store for reading. Arrays are read when they are indexed.

    Args:
        folder: Where `harvest` put it.
        verify: Whether everything that is read is compared with the checksums made when it was written. Without it, a
            file that is missing is still an error, but one that holds other rows is not noticed.
        storage: How to reach a bucket, if the environment does not say.

    Raises:
        StoreError: There is no store, or its metadata is damaged. Reading an array raises it if the data is damaged.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import store
        >>> folder = tempfile.mkdtemp()
        >>> _ = store.harvest(lambda x: sonde.sow(x * 2, "h"), [jnp.ones((4, 3))], folder, progress=False)
        >>> store.open(folder)["h"][1:3, 0]
        array([2., 2.], dtype=float32)
    """
    place = Folder(folder, storage)
    parts, identity, finished = parts_of(place, storage)
    return Store(place, parts, identity=identity, finished=finished, verify=verify)
