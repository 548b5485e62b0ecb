"""The folder of a store: small files that are replaced as a whole, on a disk or in a bucket.

TensorStore's key-value stores do the work, so a local path, `gs://bucket/run` and `s3://bucket/run` behave alike. A
write either happens or does not: on a disk TensorStore writes a temporary file, syncs it and renames it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sonde import _extras
from sonde.errors import StoreError

_LOCK = ".__lock"  # what TensorStore appends to the name of a file while it writes it
PathLike = str | os.PathLike[str]


def tensorstore() -> Any:
    """The package TensorStore, which the extra `store` brings."""
    return _extras.load("tensorstore", extra="store", purpose="A store of activations")


class Folder:
    """A folder, or a URL that TensorStore knows.

    Attributes:
        name: The path or URL as it was given.
    """

    def __init__(self, where: PathLike) -> None:
        self.name = os.fspath(where)
        path = self.name.removeprefix("file://")
        self._local = None if "://" in path else Path(path).absolute()
        if self._local is not None and self._local.exists() and not self._local.is_dir():
            raise StoreError(f"{self.name!r} is a file: a store is a folder")

    def spec(self, below: str = "") -> Any:
        """TensorStore's spec of a key."""
        if self._local is not None:
            return {"driver": "file", "path": f"{self._local.as_posix()}/{below}"}
        return f"{self.name.rstrip('/')}/{below}"

    def read(self, key: str) -> bytes | None:
        """The contents of a file, or None if there is none."""
        found = self._store().read(key).result()
        return bytes(found.value) if found.state == "value" else None

    def write(self, key: str, contents: bytes) -> None:
        """Replaces a file."""
        try:
            self._store().write(key, contents).result()
        except Exception as error:
            raise self.failed(error) from error

    def keys(self, below: str = "") -> list[str]:
        """The names of all files whose name starts with `below`."""
        found = self._store().list().result()
        names = [key.decode() if isinstance(key, bytes) else key for key in found]
        return [name for name in names if name.startswith(below)]

    def is_empty(self) -> bool:
        """Whether there is nothing in the folder, or no folder."""
        if self._local is None:
            return not self.keys()
        if not self._local.exists():
            return True
        # A process that was killed while it wrote the first file leaves that file's lock.
        return all(entry.name.endswith(_LOCK) for entry in self._local.iterdir())

    def clear_locks(self) -> None:
        """Removes partial files left by killed processes. Only while no process writes.

        TensorStore writes into such a file again without truncating it: a shorter file would end with the old bytes.
        """
        if self._local is not None:
            try:
                for left in self._local.rglob(f"*{_LOCK}"):
                    left.unlink(missing_ok=True)
            except OSError as error:
                raise self.failed(error) from error

    def failed(self, error: BaseException) -> StoreError:
        """The error for a failed write to the folder."""
        return StoreError(f"cannot write to the store {self.name!r}: {reason(error)}")

    def damaged(self, what: str, error: BaseException) -> StoreError:
        """The error for something that the store lists but that cannot be read."""
        return StoreError(
            f"cannot read {what} of the store {self.name!r}: {reason(error)}. `sonde store check` finds all that is "
            "damaged"
        )

    def _store(self) -> Any:
        return tensorstore().KvStore.open(self.spec()).result()


def reason(error: BaseException | None) -> str:
    """The message of a TensorStore error, without its description of the array."""
    said = str(error).split(" [", 1)[0].strip()
    return said.splitlines()[0].rstrip(":") if said else type(error).__name__
