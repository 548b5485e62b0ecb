"""The folder of a store: small files that are replaced as a whole, on a disk or in a bucket.

TensorStore's key-value stores do the work, so a local path, `gs://bucket/run` and `s3://bucket/run` behave alike. A
write either happens or does not: on a disk TensorStore writes a temporary file, syncs it and renames it.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sonde import _extras
from sonde.errors import StoreError
from sonde.store.format.storage import SCHEMES, Storage

_LONGEST = 255 - len(".__lock")  # characters of a name
_INTERRUPTED = 10.0  # seconds
_LOCK = ".__lock"  # what TensorStore appends to the name of a file while it writes it
PathLike = str | os.PathLike[str]


def tensorstore() -> Any:
    """The package TensorStore, which the extra `store` brings.

    Raises:
        StoreError: This process is a fork of one that has used it. Its threads are not there, and it would abort.
    """
    package = _extras.load("tensorstore", extra="store", purpose="A store of activations")
    if _using_process() != os.getpid():
        raise StoreError(
            "this process was forked from one that has used a store, so it lacks the threads that read stores. Start "
            "processes with 'spawn' or 'forkserver' (multiprocessing.get_context; data loaders have an argument for it)"
        )
    return package


@functools.cache
def _using_process() -> int:
    """The process that used TensorStore first; a fork remembers the number of its parent."""
    return os.getpid()


class Folder:
    """A folder, or a URL that TensorStore knows.

    Args:
        where: The path or URL.
        storage: How to reach it, if it is a bucket.

    Attributes:
        name: The path or URL as it was given.
    """

    def __init__(self, where: PathLike, storage: Storage | None = None) -> None:
        self.name = os.fspath(where)
        self._storage = storage or Storage()
        path = self.name.removeprefix("file://")
        scheme, colon, _ = path.partition(":")
        if colon and scheme in SCHEMES and "://" not in path:  # what is meant for a bucket would be on this machine
            raise StoreError(f"{self.name!r} is no URL: write {scheme}://, or ./{path} for a folder of that name")
        if not path or "\\" in path or "\0" in path:
            raise StoreError(f"{self.name!r} cannot be the name of a folder")
        self._contexts: dict[int, Any] = {}
        # Links are followed once, so that all files of a harvest go to one folder.
        self._local = None if "://" in path else Path(os.path.realpath(path))
        if self._local is None:
            self._storage.kvstore(self.name)
        elif len(self._local.name) > _LONGEST:
            raise StoreError(f"{self.name!r} cannot be the name of a folder")
        elif self._local.exists() and not self._local.is_dir():
            raise StoreError(f"{self.name!r} is a file: a store is a folder")

    @property
    def local_path(self) -> Path | None:
        """Where it is on a disk; None if it is in a bucket."""
        return self._local

    def spec(self, below: str = "") -> Any:
        """TensorStore's spec of a key."""
        if self._local is not None:
            return {"driver": "file", "path": f"{self._local.as_posix()}/{below}"}
        return self._storage.kvstore(f"{self.name.removesuffix('/')}/{below}")

    def read(self, key: str) -> bytes | None:
        """The contents of a file, or None if there is none.

        Raises:
            StoreError: It cannot be read.
        """
        try:
            result = self.wait(self._store().read(key))
        except Exception as error:
            raise self._unreadable(key, error) from error
        return bytes(result.value) if result.state == "value" else None

    def write(self, key: str, contents: bytes) -> None:
        """Replaces a file."""
        self.write_all({key: contents})

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """Replaces several files, in no order.

        Raises:
            StoreError: One cannot be written.
        """
        try:
            store, nbytes = self._store(), sum(map(len, files.values()))
            for future in [store.write(key, contents) for key, contents in files.items()]:
                self.wait(future, nbytes)
        except Exception as error:
            raise self.failed(error) from error

    def read_version(self, key: str) -> tuple[bytes | None, bytes]:
        """The contents of a file, or None, and a mark of this version of it, also of its absence."""
        try:
            result = self.wait(self._store().read(key))
        except Exception as error:
            raise self._unreadable(key, error) from error
        return (bytes(result.value) if result.state == "value" else None), result.stamp.generation

    def write_if(self, key: str, contents: bytes, version: bytes) -> bytes | None:
        """Replaces a file if it is still that version; returns the mark of the new version, or None.

        No other process may write the same contents.
        """
        try:
            written = self.wait(self._store().write(key, contents, if_equal=version), len(contents)).generation
        except Exception as error:
            raise self.failed(error) from error
        if written:
            return written
        # A request whose answer was lost is sent again, and then finds the version that it made itself.
        now, version = self.read_version(key)
        return version if now == contents else None

    def create(self, key: str, contents: bytes) -> bool:
        """Writes a file if there is none; returns whether there was none. Of several processes, one succeeds."""
        before, version = self.read_version(key)
        return before is None and self.write_if(key, contents, version) is not None

    def below(self, key: str) -> str:
        """The path or URL of something in the folder."""
        return f"{self.name.removesuffix('/')}/{key}"

    def remove(self, keys: Iterable[str]) -> None:
        """Removes files, if they exist.

        Raises:
            StoreError: One cannot be removed.
        """
        try:
            store = self._store()
            for future in [store.write(key, None) for key in keys]:
                self.wait(future)
        except Exception as error:
            raise self.failed(error) from error

    def context(self, cache: int) -> Any:
        """TensorStore's resources for the folder: all its arrays share one cache of so many bytes."""
        if cache not in self._contexts:
            told = {"cache_pool": {"total_bytes_limit": cache}, **self._storage.resources()}
            self._contexts[cache] = tensorstore().Context(told)
        return self._contexts[cache]

    def wait(self, future: Any, nbytes: int = 0) -> Any:
        """Waits for TensorStore; for a bucket, as long as a transfer of so many bytes may take.

        Raises:
            StoreError: The bucket did not answer in time.
        """
        seconds = None if self._local is not None else self._storage.seconds(nbytes)
        try:
            return future.result(timeout=seconds)
        except KeyboardInterrupt:
            # What has begun ends before the next call, which would take it for the work of another process.
            with contextlib.suppress(TimeoutError):
                future.exception(timeout=_INTERRUPTED)
            raise
        except TimeoutError:
            raise StoreError(
                f"the store {self.name!r} did not answer within {seconds:.0f} seconds: check the address, the network "
                "and the credentials; Storage(deadline=...) waits longer"
            ) from None

    def keys(self, below: str = "") -> list[str]:
        """The names of all files whose name starts with `below`."""
        try:
            # Up to the highest character: all names that begin so.
            span = tensorstore().KvStore.KeyRange(below, f"{below}\U0010ffff" if below else "")
            listed = self.wait(self._store().list(span))
        except Exception as error:
            raise self._unreadable("the list of files", error) from error
        return [key.decode() if isinstance(key, bytes) else key for key in listed]

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
        if isinstance(error, StoreError):
            return error
        return StoreError(f"cannot write to the store {self.name!r}: {reason(error)}")

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """A block that writes files; what the system says against it is a StoreError."""
        try:
            yield
        except (OSError, ValueError) as error:
            raise self.failed(error) from error

    def disappeared(self) -> StoreError:
        """The error of a harvest whose files were removed."""
        return StoreError(
            f"files of the store {self.name!r} have disappeared during the harvest: its folder was removed or renamed"
        )

    def taken_over(self) -> StoreError:
        """The error of a harvest that another one has replaced."""
        return StoreError(
            f"another harvest has begun to write to the store {self.name!r} since this one did. That one continues, "
            "and this one ends; start several at once with unit="
        )

    def _unreadable(self, what: str, error: BaseException) -> StoreError:
        """The error for a file that cannot be read, or a bucket that cannot be reached."""
        if isinstance(error, StoreError):
            return error
        return StoreError(f"cannot read {what} of the store {self.name!r}: {reason(error)}")

    def damaged(self, what: str, error: BaseException) -> StoreError:
        """The error for something that the store lists but that cannot be read."""
        if isinstance(error, StoreError):
            return error
        return StoreError(
            f"cannot read {what} of the store {self.name!r}: {reason(error)}. `sonde store check` finds all that is "
            "damaged"
        )

    def _store(self) -> Any:
        try:
            return self.wait(tensorstore().KvStore.open(self.spec(), context=self.context(0)))
        except (ValueError, TypeError) as error:
            raise StoreError(f"the store {self.name!r} cannot be reached: {reason(error)}") from error


def reason(error: BaseException | None) -> str:
    """The message of an error of the system, or of TensorStore without its description of the array."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    said = str(error).split(" [", 1)[0].strip().replace("\\x00", "/")  # between a folder and a file
    return said.splitlines()[0].rstrip(":") if said else type(error).__name__
