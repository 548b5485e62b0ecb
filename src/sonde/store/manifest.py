"""The metadata of a store: `sonde.json`, and one small progress file per process.

    sonde.json               the arguments of the harvest, and the arrays: written once, before anything else
    progress/00000.json      how many batches the first process has written, and the rows of every array by then
    values/blocks.3.out/     a Zarr array per site; `grads/`, `taken/` and `keys/` beside it

A batch is in the store when every process has listed it. Data after the listed rows has no meaning and is overwritten
when the harvest continues.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from sonde.errors import StoreError
from sonde.store.folder import Folder

FORMAT = "sonde.store"
VERSION = 1
MANIFEST = "sonde.json"
KINDS = ("values", "grads", "taken", "keys")


@dataclasses.dataclass(frozen=True)
class ArrayInfo:
    """One array of a store.

    Attributes:
        kind: `"values"`, `"grads"`, `"taken"` (whether a branch was taken) or `"keys"` (what identifies a row).
        path: The path of the site; with the number of the call, the part of a pytree and the iteration where needed.
        folder: Its folder in the store.
        row: The shape of a row.
        dtype: The name of its dtype.
    """

    kind: str
    path: str
    folder: str
    row: tuple[int, ...]
    dtype: str

    @property
    def name(self) -> str:
        """Kind and path together: unique in a store."""
        return f"{self.kind}/{self.path}"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The arguments of a harvest, and the arrays of the store.

    Attributes:
        request: The arguments of `harvest` that decide what is stored, and the program, as texts.
        arrays: The arrays, in program order.
        versions: The versions of the packages that wrote it.
    """

    request: Mapping[str, Any]
    arrays: tuple[ArrayInfo, ...]
    versions: Mapping[str, str]

    def to_json(self) -> bytes:
        """As text."""
        data = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        return json.dumps(data, indent=1).encode()

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Manifest:
        """From text.

        Raises:
            StoreError: It is not a manifest of this version.
        """
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise KeyError(FORMAT)
            if data["version"] != VERSION:
                raise StoreError(
                    f"{where!r} is a store of version {data['version']}; this version of Sonde reads version {VERSION}"
                )
            arrays = tuple(ArrayInfo(**{**info, "row": tuple(info["row"])}) for info in data["arrays"])
            return cls(data["request"], arrays, data["versions"])
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{where!r}: {MANIFEST} is not the manifest of a store ({error})") from error


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a process has progressed.

    Attributes:
        batches: How many batches are written.
        rows: The number of rows of every array by then, by name.
        last: A checksum of the last of these batches.
        processes: How many processes write.
        finished: Whether the harvest is complete.
    """

    batches: int = 0
    rows: Mapping[str, int] = dataclasses.field(default_factory=dict)
    last: str = ""
    processes: int = 1
    finished: bool = False


def read_manifest(folder: Folder) -> Manifest | None:
    """The manifest of a store; None if the folder is empty.

    Raises:
        StoreError: The folder holds something else.
    """
    text = folder.read(MANIFEST)
    if text is not None:
        return Manifest.from_json(text, folder.name)
    if folder.is_empty():
        return None
    raise StoreError(f"{folder.name!r} is not empty and holds no store ({MANIFEST} is missing): choose another folder")


def write_progress(folder: Folder, process: int, progress: Progress) -> None:
    """Writes how far a process has progressed."""
    folder.write(f"progress/{process:05d}.json", json.dumps(dataclasses.asdict(progress)).encode())


def read_progress(folder: Folder) -> Progress:
    """How far all processes have progressed: as far as the slowest."""
    texts = [folder.read("progress/00000.json")]
    if texts[0] is None:
        return Progress()
    first = Progress(**json.loads(texts[0]))
    texts += [folder.read(f"progress/{i:05d}.json") for i in range(1, first.processes)]
    if any(text is None for text in texts):
        return Progress(processes=first.processes)
    return min((Progress(**json.loads(text)) for text in texts if text is not None), key=lambda p: p.batches)


def folder_names(names: list[tuple[str, str]]) -> list[str]:
    """A folder for each kind and path: one level deep, because one site may be below another.

    Example:
        >>> folder_names([("values", "blocks/3/out"), ("values", "blocks/3"), ("grads", "a.b")])
        ['values/blocks.3.out', 'values/blocks.3', 'grads/a%2Eb']
    """
    taken: set[str] = set()
    folders = []
    for kind, path in names:
        escaped = ".".join(quote(part, safe="[]#").replace(".", "%2E") for part in path.split("/"))
        name, n = f"{kind}/{escaped}", 1
        while name.casefold() in taken:  # a file system may ignore case
            name, n = f"{kind}/{escaped}~{n}", n + 1
        taken.add(name.casefold())
        folders.append(name)
    return folders
