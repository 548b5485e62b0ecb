"""How far each process has written, and the checksums of what it wrote: `progress/0/00000.json`.

The file of a process is replaced after its data is on disk; only then do the batches count. A batch is in the store
when every process has listed it. Data after the listed rows has no meaning and is overwritten when the harvest
continues.

A harvest that continues a store writes the file anew, and each later version only in place of its own last one. So a
process that was thought dead cannot list anything any more.

An entry lists the batches that were written together: a checksum of each batch as it went into the program, how many
rows every array has afterwards, and the checksums of the runs of rows (`digests.py`). Many entries would make the file
long, so old ones move to segments: files that never change, named by their checksum, `progress/segments/...`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from sonde.errors import StoreError
from sonde.store.format.decoding import decoded
from sonde.store.format.digests import Run, Runs
from sonde.store.format.folder import Folder
from sonde.store.format.manifest import Manifest
from sonde.store.format.sealed import checksum, damaged, seal

SEGMENT_BYTES = 1 << 16  # entries beyond this size move to a segment


@dataclasses.dataclass(frozen=True)
class Entry:
    """Batches that were written together.

    Attributes:
        first: The number of the first batch.
        inputs: A checksum of each batch.
        rows: How many rows every array has afterwards.
        runs: For every array, the checksums of the rows that this process wrote.
    """

    first: int
    inputs: tuple[str, ...]
    rows: tuple[int, ...]
    runs: tuple[tuple[Run, ...], ...]

    @property
    def last(self) -> int:
        """The number of the batch after the last."""
        return self.first + len(self.inputs)

    def to_json(self) -> dict[str, Any]:
        """As plain lists."""
        runs = [[run.to_json() for run in of_array] for of_array in self.runs]
        return {"first": self.first, "inputs": self.inputs, "rows": self.rows, "runs": runs}

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.runs):
            raise ValueError(f"{len(self.rows)} arrays have rows, {len(self.runs)} have checksums")


@dataclasses.dataclass(frozen=True)
class Segment:
    """Entries in a file of their own.

    Attributes:
        sha256: The checksum of the file, and its name.
        last: The number of the batch after the last of its entries.
    """

    sha256: str
    last: int

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"the checksum of a segment is {self.sha256!r}")

    @property
    def file(self) -> str:
        """The name of the file."""
        return f"progress/segments/{self.sha256}.json"


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a process has written.

    Attributes:
        batches: How many batches are written.
        rows: How many rows every array has by then.
        segments: Segments of earlier entries.
        entries: The latest entries.
        finished: Whether the harvest is complete.
    """

    batches: int = 0
    rows: tuple[int, ...] = ()
    segments: tuple[Segment, ...] = ()
    entries: tuple[Entry, ...] = ()
    finished: bool = False

    def plus(self, entry: Entry) -> Progress:
        """With another entry."""
        return dataclasses.replace(
            self, batches=entry.last, rows=entry.rows, entries=(*self.entries, entry), finished=False
        )


@dataclasses.dataclass(frozen=True)
class _SegmentFile:
    entries: tuple[Entry, ...]


@dataclasses.dataclass(frozen=True)
class _Contents(Progress):
    """What is in a progress file: the progress, and which file it is."""

    identity: str = ""
    generation: int = 0
    writer: int = 0
    harvest: str = ""


class ProgressFile:
    """Writes the progress of one process, as long as no other harvest does."""

    def __init__(self, folder: Folder, manifest: Manifest, writer: int) -> None:
        self._folder, self._manifest, self._writer = folder, manifest, writer
        self._name = _file_name(manifest, writer)
        # No two harvests write the same bytes, so that each version of the file belongs to one of them.
        self._known = {**_owner(manifest, writer), "harvest": secrets.token_hex(8)}
        self._version = b""
        self._plain: dict[int, tuple[Entry, dict[str, Any], int]] = {}  # by the identity of the entry

    def create(self, progress: Progress) -> None:
        """Writes it, whatever is there. Before the manifest lists the file."""
        self._folder.write(self._name, self._sealed(progress))

    def take(self, progress: Progress) -> None:
        """Writes it in place of what an earlier harvest wrote, which can then write it no more.

        Raises:
            StoreError: Another harvest does the same.
        """
        data, self._version = self._folder.read_version(self._name)
        _contents(data, self._folder, self._manifest, self._writer)
        self._replace(progress)

    def write(self, progress: Progress) -> Progress:
        """Writes it; returns it with older entries in a segment, if there were many.

        Raises:
            StoreError: Another harvest has taken it.
        """
        if len(progress.entries) > 1 and sum(self._as_json(e)[2] for e in progress.entries) > SEGMENT_BYTES:
            progress = self._with_segment(progress)
        self._replace(progress)
        return progress

    def _replace(self, progress: Progress) -> None:
        version = self._folder.write_if(self._name, self._sealed(progress), self._version)
        if version is None:
            raise self._folder.taken_over() if self._folder.read(self._name) else self._folder.disappeared()
        self._version = version

    def _sealed(self, progress: Progress) -> bytes:
        told = dataclasses.asdict(dataclasses.replace(progress, entries=()))
        told["entries"] = [self._as_json(entry)[1] for entry in progress.entries]
        return seal({**self._known, **told})

    def _as_json(self, entry: Entry) -> tuple[Entry, dict[str, Any], int]:
        """An entry, as plain lists, and how long it is as text. Kept: entries are written again and again."""
        if id(entry) not in self._plain:
            plain = entry.to_json()
            self._plain[id(entry)] = entry, plain, len(json.dumps(plain))
        return self._plain[id(entry)]

    def _with_segment(self, progress: Progress) -> Progress:
        older, newest = progress.entries[:-1], progress.entries[-1]
        data = seal({"entries": [self._as_json(entry)[1] for entry in older]})
        segment = Segment(checksum(data), max(entry.last for entry in older))
        self._folder.write(segment.file, data)
        self._plain = {id(newest): self._as_json(newest)}
        return dataclasses.replace(progress, segments=(*progress.segments, segment), entries=(newest,))


def _owner(manifest: Manifest, writer: int) -> dict[str, Any]:
    """What says in a progress file which one it is."""
    return {"identity": manifest.identity, "generation": manifest.generation, "writer": writer}


def _file_name(manifest: Manifest, writer: int) -> str:
    return f"progress/{manifest.generation}/{writer:05d}.json"


class Listed:
    """What the progress files of a store say together.

    Attributes:
        batches: How many batches are in the store.
        rows: The number of rows of every array.
        finished: Whether the harvest is complete.
    """

    def __init__(self, folder: Folder, manifest: Manifest, files: Sequence[Progress]) -> None:
        least = min(files, key=lambda progress: progress.batches, default=Progress())
        self.batches = least.batches
        self.rows = least.rows or (0,) * len(manifest.arrays)
        self.finished = bool(files) and all(progress.finished for progress in files)
        self._folder, self._files, self._arrays = folder, files, manifest.arrays
        self._entries: list[Entry] | None = None
        self._runs: dict[int, Runs] = {}

    def runs(self, number: int) -> Runs:
        """The checksums of the rows of an array, by its place in the manifest."""
        if number not in self._runs:
            info, of_array = self._arrays[number], [run for entry in self.entries() for run in entry.runs[number]]
            runs = Runs(of_array, self.rows[number])
            if runs.size != self.rows[number] * math.prod(info.row) or not all(run.fits(info) for run in of_array):
                raise self._damaged(f"the checksums of {info.name} are not those of its rows")
            self._runs[number] = runs
        return self._runs[number]

    def inputs(self) -> list[str]:
        """A checksum of every batch in the store."""
        by_number = {entry.first + i: text for entry in self.entries() for i, text in enumerate(entry.inputs)}
        return [by_number[number] for number in sorted(by_number)]

    def entries(self) -> list[Entry]:
        """All entries of batches in the store."""
        if self._entries is None:
            entries = [entry for progress in self._files for entry in self._all_of(progress)]
            numbers = {number for entry in entries for number in range(entry.first, entry.last)}
            ends = {entry.rows for entry in entries if entry.last == self.batches}
            whole = all(len(entry.rows) == len(self._arrays) for entry in entries)
            if not whole or len(numbers) != self.batches or not ends <= {self.rows}:
                raise self._damaged("they do not list all batches")
            self._entries = entries
        return self._entries

    def _damaged(self, why: str) -> StoreError:
        return damaged("what is in progress/", self._folder.name, why)

    def of_writer(self, writer: int) -> Progress:
        """The progress of one process, without batches that others have not listed."""
        return self._cut(self._files[writer]) if self._files else Progress(rows=self.rows)

    def as_one(self) -> Progress:
        """The progress of all processes, as if one had written everything."""
        cut = [self._cut(progress) for progress in self._files]
        segments = dict.fromkeys(segment for progress in cut for segment in progress.segments)
        entries = tuple(entry for progress in cut for entry in progress.entries)
        return Progress(self.batches, self.rows, tuple(segments), entries, self.finished)

    def _cut(self, progress: Progress) -> Progress:
        whole = tuple(segment for segment in progress.segments if segment.last <= self.batches)
        begun = [segment for segment in progress.segments if segment.last > self.batches]
        entries = [entry for segment in begun for entry in self._of_segment(segment)]
        entries = tuple(entry for entry in (*entries, *progress.entries) if entry.last <= self.batches)
        return Progress(self.batches, self.rows, whole, entries, progress.finished)

    def _all_of(self, progress: Progress) -> Iterator[Entry]:
        for entry in (*(e for segment in progress.segments for e in self._of_segment(segment)), *progress.entries):
            if entry.last <= self.batches:
                yield entry

    def _of_segment(self, segment: Segment) -> list[Entry]:
        data = self._folder.read(segment.file)
        if data is None:
            raise damaged(segment.file, self._folder.name, "it is missing")
        if checksum(data) != segment.sha256:
            raise damaged(segment.file, self._folder.name, "its bytes are not those that were written")
        return list(decoded(_SegmentFile, data, segment.file, self._folder.name).entries)


def read_progress(folder: Folder, manifest: Manifest) -> Listed:
    """What a store lists.

    Raises:
        StoreError: A progress file is missing or damaged.
    """
    if not manifest.prepared:
        return Listed(folder, manifest, ())
    return Listed(folder, manifest, [_read(folder, manifest, i) for i in range(manifest.writers)])


def _contents(data: bytes | None, folder: Folder, manifest: Manifest, writer: int) -> _Contents:
    """What a progress file says, if it is that of this process of this store."""
    name, owner = _file_name(manifest, writer), _owner(manifest, writer)
    if data is None:
        raise damaged(name, folder.name, "it is missing")
    contents = decoded(_Contents, data, name, folder.name)
    if {key: getattr(contents, key) for key in owner} != owner:
        raise damaged(name, folder.name, "it belongs to another store, or to another process")
    if len(contents.rows) != len(manifest.arrays):
        raise damaged(name, folder.name, f"it has rows of {len(contents.rows)} arrays, not {len(manifest.arrays)}")
    return contents


def _read(folder: Folder, manifest: Manifest, writer: int) -> Progress:
    contents = _contents(folder.read(_file_name(manifest, writer)), folder, manifest, writer)
    return Progress(**{field.name: getattr(contents, field.name) for field in dataclasses.fields(Progress)})
