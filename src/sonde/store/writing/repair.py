"""`repair`: compute the damaged rows of a store again, and nothing else."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from sonde.core import Pattern
from sonde.errors import StoreError
from sonde.store.format import checksums, rows, zarr_arrays
from sonde.store.format.folder import Folder, PathLike
from sonde.store.format.manifest import Manifest, needed_manifest
from sonde.store.format.parts import part_of_unit
from sonde.store.format.progress import Entry, Listed, read_progress
from sonde.store.format.row_files import RowFiles, RowWriter
from sonde.store.format.storage import Storage
from sonde.store.format.units import COMPLETE, UnitsManifest, attempt_of, is_complete, read_units, reopen
from sonde.store.reading.check import Damage, check
from sonde.store.writing.harvest import check_fits, check_same, harvest_units, request_of
from sonde.store.writing.program import BatchOutcome, BatchProgram, program_for, with_first


def repair(
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
    compiled: bool = True,
    storage: Storage | None = None,
) -> list[Damage]:
    """Computes the damaged rows of a store again, and writes them if they are what was written before.

    Takes the arguments of the call of `harvest` that made the store. Only batches with damaged rows are computed; the
    others are taken from the iterator. New rows are compared with the checksums of the old ones.

    Args:
        f: As in `harvest`.
        batches: As in `harvest`.
        folder: The store.
        *patterns: As in `harvest`.
        dtype: As in `harvest`.
        reduce: As in `harvest`.
        grads: As in `harvest`.
        inside: As in `harvest`.
        keep: As in `harvest`.
        keys: As in `harvest`.
        compiled: As in `harvest`.
        storage: How to reach a bucket, if the environment does not say.

    Returns:
        What was damaged; an empty list if nothing was.

    Raises:
        StoreError: There is no store, its manifest or a progress file is damaged, it was started by a different call,
            or the program computes other numbers than before, as it may on another kind of device.

    Example:
        >>> import pathlib, shutil, tempfile
        >>> import jax.numpy as jnp, sonde
        >>> from sonde import store
        >>> f, batches = lambda x: sonde.sow(x * 2, "h"), [jnp.ones((4, 3))]
        >>> folder = tempfile.mkdtemp()
        >>> _ = store.harvest(f, batches, folder, progress=False)
        >>> shutil.rmtree(pathlib.Path(folder, "values", "h", "c"))
        >>> len(store.repair(f, batches, folder)), store.check(folder)
        (1, [])
    """
    options = {"reduce": reduce, "grads": grads, "keep": keep, "keys": keys, "inside": inside, "compiled": compiled}
    program = program_for("repair", f, patterns, dtype=dtype, **options)
    if jax.process_count() > 1:
        raise StoreError("repair runs in one process: start it without jax.distributed")
    place = Folder(folder, storage)
    units = read_units(place)
    if units is not None:
        return _repair_units(program, batches, place, storage, units)
    return _repair_part(program, batches, place, storage)


def _repair_part(program: BatchProgram, batches: Iterable[Any], place: Folder, storage: Storage | None) -> list[Damage]:
    """Repairs a store that is not elastic, or a unit."""
    manifest = needed_manifest(place)
    listed = read_progress(place, manifest)
    damages = check(place.name, storage=storage)
    if not damages:
        return []
    first, all_batches = with_first(batches, "repair")
    check_same(place, manifest.request, request_of(program, first))
    _Repair(place, manifest, listed, damages).run(program, all_batches)
    RowWriter(place, manifest.arrays).complete(listed.rows, every=True)
    place.write_all(zarr_arrays.metadata_files(manifest.arrays, listed.rows))
    left = check(place.name, storage=storage)
    if left:
        raise StoreError(f"{len(left)} parts of the store {place.name!r} are still damaged, such as {left[0]}")
    return damages


def _repair_units(
    program: BatchProgram, batches: Any, place: Folder, storage: Storage | None, units: UnitsManifest
) -> list[Damage]:
    """Repairs the units of an elastic harvest. A unit whose metadata is damaged is computed again as a whole."""
    if not hasattr(batches, "__len__") or not hasattr(batches, "__getitem__") or len(batches) != units.batches:
        raise StoreError(f"repair: {place.name!r} is of an elastic harvest: give its {units.batches} batches as a list")
    check_same(place, units.request, request_of(program, batches[0]))
    damages: list[Damage] = []
    lost = False
    try:
        complete = is_complete(place, units)
    except StoreError as error:
        damages.append(Damage("all units", (0, 0), str(error), False))
        place.remove([COMPLETE])
        complete = lost = True
    for unit in range(units.count):
        try:
            attempt = attempt_of(place, units, unit, complete=complete)
            if attempt is None:
                continue
            part = part_of_unit(place, storage, units, unit, attempt)
            part.listed.entries()
        except StoreError as error:
            damages.append(Damage(f"unit {unit}", (0, 0), str(error)))
            reopen(place, unit)
            lost = True
            continue
        of_unit = _repair_part(program, (batches[i] for i in units.span(unit)), part.folder, storage)
        damages += [dataclasses.replace(damage, name=f"unit {unit}: {damage.name}") for damage in of_unit]
    if lost:
        harvest_units(program, batches, place, storage, size=units.size)
    return damages


@dataclasses.dataclass
class _Span:
    """Rows of an array that are damaged, as whole files, and what was computed of them.

    Attributes:
        number: The place of the array in the manifest.
        first: The first row.
        last: The row after the last.
        parts: Their contents so far, in order.
    """

    number: int
    first: int
    last: int
    parts: list[np.ndarray] = dataclasses.field(default_factory=list)


class _Repair:
    def __init__(self, folder: Folder, manifest: Manifest, listed: Listed, damages: Sequence[Damage]) -> None:
        numbers = {info.name: number for number, info in enumerate(manifest.arrays)}
        self._folder, self._arrays, self._listed = folder, manifest.arrays, listed
        self._writer = RowWriter(folder, manifest.arrays)
        self._spans = [_Span(numbers[d.name], *d.rows) for d in damages if d.is_data]

    def run(self, program: BatchProgram, batches: Iterable[Any]) -> None:
        before = (0,) * len(self._arrays)
        drawn = iter(batches)
        for entry in self._in_order():
            spans = [s for s in self._spans if before[s.number] < s.last and s.first < entry.rows[s.number]]
            of_entry = list(itertools.islice(drawn, len(entry.inputs)))
            if len(of_entry) < len(entry.inputs):
                raise StoreError(f"repair: there are fewer than the {self._listed.batches} batches of the store")
            if spans:
                self._take(spans, before, entry, self._computed(program, entry, of_entry, {s.number for s in spans}))
            before = entry.rows

    def _in_order(self) -> list[Entry]:
        """An entry for each batch or group of batches, whichever process wrote it."""
        return sorted({entry.first: entry for entry in self._listed.entries()}.values(), key=lambda entry: entry.first)

    def _computed(
        self, program: BatchProgram, entry: Entry, batches: Sequence[Any], numbers: set[int]
    ) -> Mapping[int, np.ndarray]:
        parts: dict[int, list[np.ndarray]] = {number: [] for number in numbers}
        for offset, batch in enumerate(batches):
            if checksums.of_batch(batch).text() != entry.inputs[offset]:
                raise StoreError(f"repair: batch {entry.first + offset} is not the one that was stored")
            outcome: BatchOutcome = program(batch)
            check_fits(self._arrays, outcome, entry.first + offset)
            mask = None if outcome.mask is None else np.asarray(outcome.mask)
            for number in numbers:
                array = np.asarray(outcome.arrays[number])
                parts[number].append(array[mask] if mask is not None else array.reshape(-1, *self._arrays[number].row))
        return {number: np.concatenate(of_array) for number, of_array in parts.items()}

    def _take(
        self, spans: Sequence[_Span], before: Sequence[int], entry: Entry, computed: Mapping[int, np.ndarray]
    ) -> None:
        """Takes the rows of an entry that damaged files need; writes files of which all rows are known."""
        for span in spans:
            start, data = before[span.number], computed[span.number]
            first, last = max(start, span.first), min(entry.rows[span.number], span.last)
            span.parts.append(data[first - start : last - start])
            if last == span.last:
                self._write(span)

    def _write(self, span: _Span) -> None:
        info, data = self._arrays[span.number], np.concatenate(span.parts)
        span.parts.clear()
        for run in self._listed.runs(span.number).of(span.first, span.last):
            whole = span.first <= run.first and run.last <= span.last
            if not whole or not run.is_in(data, span.first):
                raise StoreError(
                    f"repair: rows {run.first} to {run.last - 1} of {info.name!r} are not what was written before: the "
                    "program computes other numbers on this machine. Repair on the kind of machine that harvested"
                )
        # A damaged file is not completed: it goes first.
        self._folder.remove(name for name, _ in RowFiles(info).names(span.first, span.last))
        columns = tuple(slice(0, size) for size in info.row)
        self._writer.write(span.number, rows.Piece(slice(span.first, span.last), columns, data))
        self._writer.settle(self._writer.taken())
