"""`harvest`: run a program on many batches and store the values at its sites."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from sonde._array_text import indexed
from sonde._version import __version__
from sonde.core import Pattern
from sonde.errors import StoreError
from sonde.store.format import checksums, rows, zarr_arrays
from sonde.store.format.folder import Folder, PathLike
from sonde.store.format.manifest import MANIFEST, ArrayInfo, Manifest, folder_names, needed_manifest, read_manifest
from sonde.store.format.progress import Listed, Progress, ProgressFile, read_progress
from sonde.store.format.storage import Storage
from sonde.store.format.units import shared_units
from sonde.store.reading.reader import Store
from sonde.store.reading.reader import open as open_store
from sonde.store.writing.multiprocess import Company, agree, check_alike, on_every_process, together
from sonde.store.writing.program import BatchOutcome, BatchProgram, owned, program_for, with_first
from sonde.store.writing.progress_bar import ProgressBar
from sonde.store.writing.sigterm import asked_to_leave
from sonde.store.writing.worker import Worker
from sonde.store.writing.writer import Writer, batches_at_a_time
from sonde.tools.execution.host_transfer import in_turn

GIBIBYTE = 1 << 30


def harvest(
    f: Callable[..., Any],
    batches: Iterable[Any],
    folder: PathLike,
    *patterns: Pattern,
    dtype: Any = None,
    reduce: Callable[[Any], Any] | None = None,
    grads: bool = False,
    inside: object = None,
    keep: Callable[..., Any] | None = None,
    keys: Callable[..., Any] | None = None,
    memory: int = GIBIBYTE,
    compiled: bool = True,
    progress: bool = True,
    storage: Storage | None = None,
    unit: int | None = None,
    lease: float = 60.0,
) -> Store:
    """Runs a program on many batches and stores the values at its sites, one Zarr array per site.

    The rows of an array are the elements along the first axis of the value, batch after batch. A site in a `scan` is
    stored as one array per iteration (`h[0]`, `h[1]`, ...), a site that runs several times as one per call (`h#0`).
    Batches are written while the next one is computed. On SIGTERM, what is computed is written, and then the process
    ends as it would have; if a handler of the caller lets it live, an unfinished store is returned.

    The same call on the same folder continues after the last batch in it: earlier batches are taken from `batches` and
    skipped. A process that is killed loses only the batches that were not written yet.

    With several processes (`jax.distributed`), every process makes the same call with global arrays, and writes the
    part of each value that its devices hold.

    Args:
        f: Any function that `sonde.capture` takes. A model is not changed by it.
        batches: The inputs. Each is a tuple of arguments, or one argument.
        folder: A folder, made if it is missing, or a URL such as `gs://bucket/run`.
        *patterns: Which sites; all by default.
        dtype: The dtype to store floating-point numbers in, such as `"float16"`; unchanged by default.
        reduce: A function of the value, applied at the site, whose result is stored in its place.
        grads: Whether to store gradients too, if `f` differentiates something.
        inside: Functions or modules that mark no values themselves; see `sonde.capture`.
        keep: A function of the arguments of `f` that returns a mask, such as `lambda tokens: tokens != 0`. Values are
            flattened over the axes of the mask, and only the rows that it keeps are stored.
        keys: A function of the arguments of `f` that returns a dict of arrays to store with the values, to identify the
            rows: tokens, numbers of documents.
        memory: How many bytes may wait between the program and the disk; one batch may be larger. Objects in a bucket
            are as large as it allows: with little memory there are many.
        compiled: Whether to jit the program. False for one whose Python code depends on values.
        progress: Whether to show a progress bar on a terminal.
        storage: How to reach a bucket, if the environment does not say.
        unit: Makes the harvest elastic: any number of processes, each by itself and without `jax.distributed`, make the
            same call and take units of so many batches until all are done. `batches` must have a length and an index.
        lease: After how many seconds without a sign of life a process has died, and its unit is taken by another one.

    Returns:
        The store, open for reading.

    Raises:
        StoreError: The folder holds something else, or a store of another program, pattern or dtype; or it cannot be
            written. The folder's contents stay.
        NoSuchSiteError: A pattern matches no site.

    Example:
        >>> import tempfile
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import store
        >>> def f(x):
        ...     return sonde.sow(jnp.sin(x), "h").sum()
        >>> batches = [jnp.arange(8.0).reshape(4, 2) + i for i in range(3)]
        >>> kept = store.harvest(f, batches, tempfile.mkdtemp(), "h", dtype="float16", progress=False)
        >>> kept["h"].shape, kept["h"][:2].dtype
        ((12, 2), dtype('float16'))
    """
    options = {"reduce": reduce, "grads": grads, "keep": keep, "keys": keys, "inside": inside, "compiled": compiled}
    program = program_for("harvest", f, patterns, dtype=dtype, **options)
    if not isinstance(memory, int | float) or not memory >= 1:
        raise ValueError(f"harvest(memory=...) must be a positive number of bytes, got {memory!r}")
    if unit is not None:
        harvest_units(program, batches, Folder(folder, storage), storage, size=unit, lease=lease, memory=memory)
    else:
        _harvest_all(program, batches, Folder(folder, storage), memory, progress=progress)
    return open_store(folder, storage=storage)


def harvest_units(
    program: BatchProgram,
    batches: Any,
    place: Folder,
    storage: Storage | None,
    *,
    size: int,
    lease: float = 60.0,
    memory: int = GIBIBYTE,
) -> None:
    """Takes units of batches until all are done, beside other processes that do the same."""
    if not hasattr(batches, "__len__") or not hasattr(batches, "__getitem__"):
        raise TypeError("harvest(unit=...) takes batches from any place: give a list, or an object with len and index")
    if size < 1 or lease <= 0:
        raise ValueError(f"harvest: unit and lease must be positive, got {size} and {lease}")
    if jax.process_count() > 1:
        raise StoreError("harvest(unit=...): each process works by itself; start them without jax.distributed")
    if not len(batches):
        raise ValueError("harvest: there are no batches")
    request = request_of(program, batches[0])
    manifest = shared_units(place, request, len(batches), size)
    check_same(place, manifest.request, request)

    def compute(numbers: range, below: str) -> bool:
        target = Folder(place.below(below), storage)
        return _harvest_all(program, (batches[i] for i in numbers), target, memory, progress=False)

    with asked_to_leave() as leaving:
        Worker(place, manifest, batches, storage, lease=lease, leaving=leaving).run(compute)


def _harvest_all(program: BatchProgram, batches: Iterable[Any], place: Folder, memory: int, *, progress: bool) -> bool:
    """Runs all batches; returns whether it was not asked to leave before."""
    with together():
        manifest = read_manifest(place)
        listed = None if manifest is None else read_progress(place, manifest)
        stored = [] if listed is None else listed.inputs()
    told = manifest.identity if manifest is not None and manifest.prepared else None, len(stored), stored[-1:]
    check_alike(f"what is in {place.name!r}", repr(told).encode())
    first, all_batches = with_first(batches, "harvest")
    request = request_of(program, first)
    if manifest is not None:
        check_same(place, manifest.request, request)
    bar = ProgressBar(len(batches) if isinstance(batches, Sequence) else None, show=progress and _is_first())
    numbered = enumerate(all_batches)
    with bar:
        for number, batch in itertools.islice(numbered, len(stored)):
            if checksums.of_batch(batch).text() != stored[number]:
                _refuse(place, [f"batch {number} is not the one that was stored"])
            bar.skip()
        with asked_to_leave() as leaving:
            return _run(program, numbered, _Begun(place, manifest, listed, request, memory, leaving), bar)


@dataclasses.dataclass(frozen=True)
class _Begun:
    """What a harvest found in its folder.

    Attributes:
        place: The folder.
        manifest: The manifest, if there is one.
        listed: What the store lists, if there is one.
        request: The arguments of this harvest.
        memory: How many bytes may be buffered.
        leaving: Tells whether the process was asked to end.
    """

    place: Folder
    manifest: Manifest | None
    listed: Listed | None
    request: dict[str, Any]
    memory: int
    leaving: Callable[[], bool]

    def writer(self, outcome: BatchOutcome) -> Writer:
        """The writer of this process, when the first batch is known. All processes make it together."""
        with together():
            _check_global(outcome)
            if self.manifest is not None:
                check_fits(self.manifest.arrays, outcome, 0 if self.listed is None else self.listed.batches)
            if _is_first():  # the others might see what it writes meanwhile
                self._prepare(outcome)
        with together():
            if self.place.read(MANIFEST) is None:
                raise StoreError(
                    f"this process does not see what the first one wrote to {self.place.name!r}: give a folder that "
                    "all share"
                )
            return self._opened(outcome)

    def writer_to_finish(self) -> Writer | None:
        """The writer for a harvest that ended after its last batch, and before it was marked as complete."""
        if self.manifest is None or self.listed is None or not self.listed.batches or self.listed.finished:
            return None
        with together():
            if _is_first():
                self._take_over(self.manifest, self.place.read_version(MANIFEST)[1], self.listed)
        with together():
            return self._opened(None)

    def _opened(self, outcome: BatchOutcome | None) -> Writer:
        manifest = needed_manifest(self.place)
        listed = read_progress(self.place, manifest)
        self._check_unchanged(listed)
        process = jax.process_index()
        batches = 1 if outcome is None else batches_at_a_time(outcome, self.place, self.memory)
        progress = listed.of_writer(process)
        return Writer(
            self.place,
            manifest,
            progress,
            process=process,
            memory=self.memory,
            file_batches=batches,
            hurry=self.leaving,
        )

    def _check_unchanged(self, listed: Listed) -> None:
        """Raises StoreError if another harvest has listed batches since this one looked."""
        if listed.batches != (0 if self.listed is None else self.listed.batches):
            raise self.place.taken_over()

    def _prepare(self, outcome: BatchOutcome) -> None:
        """Makes the manifest and the files it lists if they are missing."""
        data, version = self.place.read_version(MANIFEST)
        begun = None if data is None else Manifest.from_bytes(data, self.place.name)
        if (begun and begun.identity) != (self.manifest and self.manifest.identity):
            raise self.place.taken_over()
        if begun is not None:
            self._check_unchanged(read_progress(self.place, begun))
        self.place.clear_locks()
        if begun is not None and begun.prepared:
            if self.listed is not None:
                self._take_over(begun, version, self.listed)
            return
        versions = {"jax": jax.__version__, "sonde": __version__}
        manifest = begun or Manifest(self.request, _infos(outcome, self.place, self.memory), versions)
        manifest = dataclasses.replace(manifest, writers=jax.process_count())
        version = manifest.write(self.place, version)
        rows_now = (0,) * len(manifest.arrays)
        self.place.write_all(zarr_arrays.metadata_files(manifest.arrays, rows_now))
        _write_with_files(self.place, manifest, version, Progress(rows=rows_now))

    def _take_over(self, manifest: Manifest, version: bytes, listed: Listed) -> None:
        """Prepares the store for this number of processes: the first one takes over what others have written."""
        if manifest.writers != jax.process_count():
            more = dataclasses.replace(manifest, writers=jax.process_count(), generation=manifest.generation + 1)
            _write_with_files(self.place, more, version, listed.as_one())


def _write_with_files(place: Folder, manifest: Manifest, version: bytes, written: Progress) -> None:
    """Writes the progress files that a manifest needs, and then the manifest, in place of that version."""
    alone = dataclasses.replace(written, segments=(), entries=())
    for process in range(manifest.writers):
        ProgressFile(place, manifest, process).create(alone if process else written)
    dataclasses.replace(manifest, prepared=True).write(place, version)


def _run(program: BatchProgram, numbered: Iterator[tuple[int, Any]], begun: _Begun, bar: ProgressBar) -> bool:
    """Runs the batches that are not in the store yet, and writes their values; returns whether all were run."""
    writer: Writer | None = None
    company, left = Company(), False
    try:
        for number, drawn in numbered:
            batch = owned(drawn)
            outcome = in_turn(program(batch))
            outcome = dataclasses.replace(outcome, mask=on_every_process(outcome.mask))
            if writer is None:
                writer = begun.writer(outcome)
            check_fits(writer.infos, outcome, number)
            writer.put(outcome, checksums.of_batch(batch))
            bar.advance(outcome)
            left = company.tell(writer.error, leaves=begun.leaving())
            del outcome, batch, drawn  # their memory is for the next ones
            if left:
                break
    finally:
        if writer is not None:
            writer.close()
    writer = writer or begun.writer_to_finish()
    if writer is not None:
        agree(writer.error)
        with together():
            writer.tell_other_readers()
            if not left:
                writer.finish()
    return not left


def _is_first() -> bool:
    return jax.process_index() == 0


def request_of(program: BatchProgram, batch: Any) -> dict[str, Any]:
    """The arguments as texts, to compare with when the harvest is continued."""
    wanted = program.wanted
    return {
        "function": _name(wanted.f),
        "patterns": [pattern if isinstance(pattern, str) else _name(pattern) for pattern in wanted.patterns],
        "dtype": None if wanted.dtype is None else wanted.dtype.name,
        "reduce": _name(wanted.reduce),
        "grads": wanted.grads,
        "keep": _name(wanted.keep),
        "keys": _name(wanted.keys),
        **program.describe(batch),
        "first batch": checksums.of_batch(batch).text(),
    }


def _name(f: Any) -> str | None:
    if f is None:
        return None
    named = f if hasattr(f, "__qualname__") else getattr(f, "func", type(f))
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', type(f).__name__)}"


def check_same(folder: Folder, before: Any, now: dict[str, Any]) -> None:
    """Raises StoreError if the arguments of a harvest are not those that the store was started with."""
    said = {
        "program": "the program computes something else",
        "weights": "the weights of the program have changed",
        "first batch": "the first batch is different",
    }
    differing = [
        said.get(key) or f"{key} was {before.get(key)!r}, now {now.get(key)!r}"
        for key in dict.fromkeys((*before, *now))
        if before.get(key) != now.get(key)
    ]
    if differing:
        _refuse(folder, differing)


def _refuse(folder: Folder, differing: Sequence[str]) -> None:
    raise StoreError(
        f"the store {folder.name!r} was started by a different call: {'; '.join(differing)}. Repeat that call to "
        "continue it, or choose another folder"
    )


def _infos(outcome: BatchOutcome, place: Folder, memory: int) -> tuple[ArrayInfo, ...]:
    folders = folder_names(list(outcome.names))
    times = batches_at_a_time(outcome, place, memory)
    infos = []
    for (kind, path), folder, array in zip(outcome.names, folders, outcome.arrays):
        columns = tuple(max(n, 1) for n in rows.columns_at_a_time(array, outcome.mask))
        if outcome.mask is not None:
            # How many rows are kept is not known: about half of what is written at a time, so that little is left over.
            per_file = 1 << max(0, (times * outcome.mask.size // 2).bit_length() - 1)
        else:
            # A process fills its files alone: with several, a file has rows of one batch.
            per_file = max(1, (1 if jax.process_count() > 1 else times) * rows.rows_at_a_time(array))
        per_chunk = zarr_arrays.rows_per_chunk(per_file, math.prod(columns) * array.dtype.itemsize)
        shape = rows.row_shape(array, outcome.mask)
        info = ArrayInfo(kind, path, folder, shape, array.dtype.name, (per_file, *columns), per_chunk)
        zarr_arrays.check_can_hold(info)
        infos.append(info)
    return tuple(infos)


def _check_global(outcome: BatchOutcome) -> None:
    if jax.process_count() == 1:
        return
    for (kind, path), array in zip(outcome.names, outcome.arrays):
        if array.is_fully_addressable:
            raise StoreError(
                f"harvest: the {kind} of {path!r} are on the devices of one process only, but there are "
                f"{jax.process_count()}. Give the program global arrays (jax.make_array_from_process_local_data), or "
                "harvest into a folder per process and join them with `sonde store merge`"
            )


def check_fits(infos: Sequence[ArrayInfo], outcome: BatchOutcome, number: int) -> None:
    """Raises StoreError if a batch does not have the sites and rows of earlier batches."""
    known = {(info.kind, info.path): info for info in infos}
    if tuple(known) != outcome.names:
        missing = [f"{kind}/{path}" for kind, path in known if (kind, path) not in outcome.names]
        surplus = [f"{kind}/{path}" for kind, path in outcome.names if (kind, path) not in known]
        raise StoreError(
            f"harvest: batch {number} does not have the stored sites: missing {missing}, not stored {surplus}"
        )
    for name, array in zip(outcome.names, outcome.arrays):
        info, shape = known[name], rows.row_shape(array, outcome.mask)
        if (info.row, info.dtype) != (shape, array.dtype.name):
            raise StoreError(
                f"harvest: rows of {info.name!r} are {indexed(info.dtype, info.row)}, those of batch {number} are "
                f"{indexed(array.dtype.name, shape)}; pad batches to one shape, or drop padding with keep="
            )
