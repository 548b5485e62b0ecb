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
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from sonde.errors import StoreError
from sonde.store.format.folder import Folder
from sonde.store.format.sealed import checksum, damaged, seal, unseal

FORMAT = "sonde.store"
VERSION = 3
MANIFEST = "sonde.json"
KINDS = ("values", "grads", "taken", "keys")
_FIELD_TYPES = {
    "request": dict,
    "versions": dict,
    "writers": int,
    "generation": int,
    "prepared": bool,
    "identity": str,
}
_LONGEST = 150  # characters of the name of a folder; file systems take 255 bytes


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
        chunk_rows: How many of these rows are compressed together.
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

    @classmethod
    def from_json(cls, data: Any) -> ArrayInfo:
        """From parsed JSON.

        Raises:
            ValueError: A field is missing or has a value that no array can have.
        """
        if not isinstance(data, dict) or set(data) != {field.name for field in dataclasses.fields(cls)}:
            raise ValueError(f"an array is described by {data!r}")
        for field in ("kind", "path", "folder", "dtype"):
            if not isinstance(data[field], str):
                raise ValueError(f"{field} is {data[field]!r}")
        for field, least in (("row", 0), ("file", 1)):
            if not isinstance(data[field], list) or not all(type(n) is int and n >= least for n in data[field]):
                raise ValueError(f"{field} is {data[field]!r}")
        kind, below = data["kind"], data["folder"].removeprefix(f"{data['kind']}/")
        if kind not in KINDS or below == data["folder"] or not below or "/" in below or below in (".", ".."):
            raise ValueError(f"an array of the kind {kind!r} is in the folder {data['folder']!r}")
        rows = data["chunk_rows"]
        if len(data["file"]) != len(data["row"]) + 1 or type(rows) is not int or rows < 1 or data["file"][0] % rows:
            raise ValueError(f"files of {data['file']} with chunks of {rows!r} rows do not fit rows of {data['row']}")
        row, file = tuple(data["row"]), tuple(data["file"])
        return cls(kind, data["path"], data["folder"], row, data["dtype"], file, rows)


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
    """

    request: Mapping[str, Any]
    arrays: tuple[ArrayInfo, ...]
    versions: Mapping[str, str]
    writers: int = 1
    generation: int = 0
    prepared: bool = False
    identity: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))

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
        data = seal({"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)})
        written = folder.write_if(MANIFEST, data, version)
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
        told = unseal(data, MANIFEST, where)
        try:
            arrays = tuple(map(ArrayInfo.from_json, told["arrays"]))
            if {len({info.name for info in arrays}), len({info.folder for info in arrays})} != {len(arrays)}:
                raise ValueError("two arrays have one name")
            fields = {name: told[name] for name in _FIELD_TYPES}
            for name, value in fields.items():
                if type(value) is not _FIELD_TYPES[name]:
                    raise ValueError(f"{name} is {value!r}")
            return cls(arrays=arrays, **fields)
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(MANIFEST, where, f"{type(error).__name__}: {error}") from error


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
