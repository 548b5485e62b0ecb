"""The manifest of a store, `sonde.json`: the arguments of the harvest, and the arrays.

    sonde.json               the manifest
    progress/0/00000.json    what the first process has written, with checksums (`progress.py`)
    values/blocks.3.out/     a Zarr array per site; `grads/`, `taken/` and `keys/` beside it

The manifest is written twice: before anything else, so that a harvest that is killed can be continued, and again when
all other files exist. From then on, a file that is missing is damage.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from sonde.errors import StoreError
from sonde.store.format.decoding import decoded
from sonde.store.format.folder import Folder
from sonde.store.format.sealed import checksum, seal

FORMAT = "sonde.store"
VERSION = 4
MANIFEST = "sonde.json"
KINDS = ("values", "grads", "taken", "keys")
_LONGEST = 150  # characters of the name of a folder; file systems take 255 bytes
_LARGEST = 1 << 50  # elements of a row, or of a file


@dataclasses.dataclass(frozen=True)
class ArrayInfo:
    """One array of a store.

    Attributes:
        kind: `"values"`, `"grads"`, `"taken"` (whether a branch was taken) or `"keys"` (what identifies a row).
        path: The path of the site; with the number of the call, the part of a pytree and the iteration where needed.
        folder: Its folder in the store.
        row: The shape of a row.
        dtype: The name of its dtype.
        file: How many rows a file holds, and how much of a row, per axis.
        chunk_rows: How many of these rows are read and verified together.
    """

    kind: str
    path: str
    folder: str
    row: tuple[int, ...]
    dtype: str
    file: tuple[int, ...]
    chunk_rows: int

    @property
    def name(self) -> str:
        """Kind and path together: unique in a store."""
        return f"{self.kind}/{self.path}"

    def same_rows(self, other: ArrayInfo) -> bool:
        """Whether two arrays hold the same thing, however it is divided into files."""
        return dataclasses.replace(self, file=other.file, chunk_rows=other.chunk_rows) == other

    def __post_init__(self) -> None:
        below = self.folder.removeprefix(f"{self.kind}/")
        if self.kind not in KINDS or below in (self.folder, "", ".", "..") or "/" in below:
            raise ValueError(f"an array of the kind {self.kind!r} is in the folder {self.folder!r}")
        fits = len(self.file) == len(self.row) + 1 and min(*self.file, self.chunk_rows) >= 1
        if not fits or self.file[0] % self.chunk_rows or max(map(math.prod, (self.row, self.file))) > _LARGEST:
            raise ValueError(f"files of {self.file} with chunks of {self.chunk_rows} rows, for rows of {self.row}")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The arguments of a harvest, and the arrays of the store.

    Attributes:
        request: The arguments of `harvest` that decide what is stored, and the program, as texts.
        arrays: The arrays, in program order.
        versions: The versions of the packages that wrote it.
        writers: How many progress files there are.
        generation: How often the number of processes has changed.
        prepared: Whether all other files exist.
        identity: A random text, which is also in the other files, so that files of another store are noticed.
        format: The name of the format.
        version: Its version.
    """

    request: Mapping[str, Any]
    arrays: tuple[ArrayInfo, ...]
    versions: Mapping[str, str]
    writers: int = 1
    generation: int = 0
    prepared: bool = False
    identity: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if {len({info.name for info in self.arrays}), len({info.folder for info in self.arrays})} != {len(self.arrays)}:
            raise ValueError("two arrays have one name")

    def differing(self, other: Manifest) -> list[str]:
        """The names of arrays that are not in both, or have other rows there, or come in another order."""
        arrays, others = ({info.name: info for info in manifest.arrays} for manifest in (self, other))
        names = [
            name
            for name in {**arrays, **others}
            if name not in arrays or name not in others or not arrays[name].same_rows(others[name])
        ]
        return names if names or list(arrays) == list(others) else list(arrays)

    def write(self, folder: Folder, version: bytes) -> bytes:
        """Writes it to a folder in place of that version of the file; returns the mark of the new one.

        Raises:
            StoreError: Another harvest has written it since.
        """
        written = folder.write_if(MANIFEST, seal(dataclasses.asdict(self)), version)
        if written is None:
            raise folder.taken_over()
        return written

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Manifest:
        """From the bytes of the file.

        Raises:
            StoreError: It is damaged, or not a manifest of this version.
        """
        _refuse_other_version(data, where)
        return decoded(cls, data, MANIFEST, where)


def _refuse_other_version(data: bytes, where: str) -> None:
    """Raises StoreError for the manifest of another version of the format; version 1 had no checksum."""
    try:
        told = json.loads(data)
        told = told if "format" in told else told["contents"]
        if told["format"] == FORMAT and told["version"] != VERSION:
            raise StoreError(
                f"{where!r} is a store of version {told['version']}; this version of Sonde reads version {VERSION}: "
                "read it with the version that wrote it, or harvest again"
            )
    except (ValueError, KeyError, TypeError, RecursionError):
        pass  # damaged: `unseal` says so


def read_manifest(folder: Folder) -> Manifest | None:
    """The manifest of a store; None if the folder is empty.

    Raises:
        StoreError: The manifest is damaged, or the folder holds something else.
    """
    data = folder.read(MANIFEST)
    if data is not None:
        return Manifest.from_bytes(data, folder.name)
    if folder.is_empty():
        return None
    raise StoreError(f"{folder.name!r} is not empty and holds no store ({MANIFEST} is missing): choose another folder")


def needed_manifest(folder: Folder) -> Manifest:
    """The manifest of a store.

    Raises:
        StoreError: There is no store, or its manifest is damaged.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise StoreError(f"there is no store in {folder.name!r}")
    return manifest


def folder_names(names: list[tuple[str, str]]) -> list[str]:
    """A folder for each kind and path: one level deep, because one site may be below another.

    Example:
        >>> folder_names([("values", "blocks/3/out"), ("values", "blocks/3"), ("grads", "a.b")])
        ['values/blocks.3.out', 'values/blocks.3', 'grads/a%2Eb']
    """
    taken: set[str] = set()
    folders = []
    for kind, path in names:
        escaped = ".".join(
            quote(part, safe="[]#", errors="surrogatepass").replace(".", "%2E") for part in path.split("/")
        )
        if len(escaped) > _LONGEST:
            escaped = f"{escaped[:_LONGEST]}~{checksum(path.encode(errors='surrogatepass'))[:16]}"
        name, n = f"{kind}/{escaped}", 1
        while name.casefold() in taken:  # a file system may ignore case
            name, n = f"{kind}/{escaped}~{n}", n + 1
        taken.add(name.casefold())
        folders.append(name)
    return folders
