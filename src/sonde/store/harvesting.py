"""`harvest`: run a program on many batches and store the values at its sites."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sonde._array_text import indexed
from sonde._version import __version__
from sonde.core.capture import check_callable
from sonde.core.path import Pattern, check_pattern
from sonde.errors import StoreError
from sonde.store import checksums, rows, zarr_arrays
from sonde.store.agreeing import Company, agree, check_alike, on_every_process, together
from sonde.store.folder import Folder, PathLike
from sonde.store.manifest import (
    MANIFEST,
    ArrayInfo,
    Manifest,
    Progress,
    folder_names,
    read_manifest,
    read_progress,
)
from sonde.store.program import BatchOutcome, BatchProgram, ToStore
from sonde.store.progress_bar import ProgressBar
from sonde.store.reading import Store
from sonde.store.reading import open as open_store
from sonde.store.writing import Writer, local_bytes
from sonde.tools.fetching import in_turn

GIBIBYTE = 1 << 30


def harvest(
    f: Callable[..., Any],
    batches: Iterable[Any],
    folder: PathLike,
    *patterns: Pattern,
    dtype: Any = None,
    reduce: Callable[[Any], Any] | None = None,
    grads: bool = False,
    inside: Any = None,
    keep: Callable[..., Any] | None = None,
    keys: Callable[..., Any] | None = None,
    memory: int = GIBIBYTE,
    compiled: bool = True,
    progress: bool = True,
) -> Store:
    """Runs a program on many batches and stores the values at its sites, one Zarr array per site.

    The rows of an array are the elements along the first axis of the value, batch after batch. A site in a `scan` is
    stored as one array per iteration (`h[0]`, `h[1]`, ...), a site that runs several times as one per call (`h#0`).
    Batches are written while the next one is computed.

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
        memory: How many bytes may be buffered between the program and the disk.
        compiled: Whether to jit the program. False for one whose Python code depends on values.
        progress: Whether to show a progress bar on a terminal.

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
    check_callable(f, "harvest")
    patterns = tuple(map(check_pattern, patterns))
    dtype = None if dtype is None else jnp.dtype(dtype)
    if memory < 1:
        raise ValueError(f"harvest(memory=...) must be a positive number of bytes, got {memory}")
    program = BatchProgram(ToStore(f, patterns, dtype, reduce, grads, keep, keys, inside, compiled))
    place = Folder(folder)
    with together():
        manifest, done = read_manifest(place), read_progress(place)
        if manifest is not None and done.batches and done.processes != jax.process_count():
            _refuse(place, [f"it was started by {done.processes} processes, now there are {jax.process_count()}"])
    check_alike(f"what is in {place.name!r}", repr((manifest is None, done.batches, done.last)).encode())
    drawn = iter(batches)
    first = list(itertools.islice(drawn, 1))
    if not first:
        raise ValueError("harvest: there are no batches")
    request = _request(program, first[0])
    if manifest is not None:
        _check_same(place, manifest.request, request)
    bar = ProgressBar(len(batches) if isinstance(batches, Sequence) else None, show=progress and _is_first())
    numbered = enumerate(itertools.chain(first, drawn))
    with bar:
        for number, batch in itertools.islice(numbered, done.batches):
            if number == done.batches - 1 and checksums.of_batch(batch).text() != done.last:
                _refuse(place, [f"batch {number} is not the one that was stored"])
            bar.skip()
        _run(program, numbered, place, manifest, done, request, memory, bar)
    return open_store(folder)


def _run(
    program: BatchProgram,
    numbered: Iterator[tuple[int, Any]],
    place: Folder,
    manifest: Manifest | None,
    done: Progress,
    request: dict[str, Any],
    memory: int,
    bar: ProgressBar,
) -> None:
    """Runs the batches that are not in the store yet, and writes their values."""
    writer: Writer | None = None
    company = Company()
    try:
        for number, batch in numbered:
            outcome = in_turn(program(batch))
            outcome = dataclasses.replace(outcome, mask=on_every_process(outcome.mask))
            if writer is None:
                writer = _begin(place, manifest, done, request, outcome, memory)
            _check_fits(writer.infos, outcome, number)
            writer.put(outcome, checksums.of_batch(batch))
            bar.advance(outcome)
            company.tell(writer.error)
    finally:
        if writer is not None:
            writer.close()
    if writer is None and manifest is not None and done.batches and not done.finished:
        # A harvest that ended after its last batch, and before it was marked as complete.
        writer = _writer(place, manifest, done, memory, file_batches=1)
    if writer is not None:
        agree(writer.error)
        with together():
            writer.finish()


def _begin(
    place: Folder,
    manifest: Manifest | None,
    done: Progress,
    request: dict[str, Any],
    outcome: BatchOutcome,
    memory: int,
) -> Writer:
    with together():
        _check_global(outcome)
        manifest = _prepare(place, manifest, request, outcome)
    start = done if done.batches else Progress(processes=jax.process_count())
    with together():
        if place.read(MANIFEST) is None:
            if _is_first():
                raise StoreError(f"{place.name!r} does not keep what is written to it: give a folder or a bucket")
            raise StoreError(
                f"this process does not see what the first one wrote to {place.name!r}: give a folder that all share"
            )
        return _writer(place, manifest, start, memory, file_batches=_batches_per_file(outcome))


def _writer(place: Folder, manifest: Manifest, start: Progress, memory: int, *, file_batches: int) -> Writer:
    process = jax.process_index()
    return Writer(place, manifest.arrays, start, process=process, memory=memory, file_batches=file_batches)


def _is_first() -> bool:
    return jax.process_index() == 0


def _request(program: BatchProgram, batch: Any) -> dict[str, Any]:
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


def _check_same(folder: Folder, before: Any, now: dict[str, Any]) -> None:
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


def _prepare(folder: Folder, manifest: Manifest | None, request: dict[str, Any], outcome: BatchOutcome) -> Manifest:
    """The manifest; makes it and the arrays it lists if they are missing."""
    infos = _infos(outcome)
    if manifest is not None:
        _check_fits(manifest.arrays, outcome, 0)
        infos = manifest.arrays
    else:
        versions = {"jax": jax.__version__, "sonde": __version__}
        manifest = Manifest(request, infos, versions)
    if not _is_first():
        return manifest
    folder.clear_locks()
    if folder.read(MANIFEST) is None:
        folder.write(MANIFEST, manifest.to_json())
    zarr_arrays.create_groups(folder, infos)
    times = 1 if jax.process_count() > 1 else _batches_per_file(outcome)
    for info, array in zip(infos, outcome.arrays):
        columns = rows.columns_at_a_time(array, outcome.mask)
        per_file = times * rows.rows_at_a_time(array, outcome.mask) or _rows_of_a_file(array, columns)
        zarr_arrays.create(folder, info, rows=per_file, columns=columns)
    return manifest


def _infos(outcome: BatchOutcome) -> tuple[ArrayInfo, ...]:
    folders = folder_names(list(outcome.names))
    shapes = [rows.row_shape(array, outcome.mask) for array in outcome.arrays]
    return tuple(
        ArrayInfo(kind, path, folder, shape, array.dtype.name)
        for (kind, path), folder, shape, array in zip(outcome.names, folders, shapes, outcome.arrays)
    )


def _rows_of_a_file(array: Any, columns: Sequence[int]) -> int:
    row_bytes = math.prod(columns) * array.dtype.itemsize
    return 1 << max(0, (zarr_arrays.FILE_BYTES // max(row_bytes, 1)).bit_length() - 1)


def _batches_per_file(outcome: BatchOutcome) -> int:
    """How many batches go into one file."""
    largest = max((local_bytes(array) for array in outcome.arrays), default=0)
    return max(1, zarr_arrays.FILE_BYTES // max(largest, 1))


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


def _check_fits(infos: Sequence[ArrayInfo], outcome: BatchOutcome, number: int) -> None:
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
