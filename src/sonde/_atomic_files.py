"""Files and folders that are replaced as a whole: at every moment, either the old one or the new one exists.

The new one is written beside the old one, in the same folder, and takes its name when it is complete. A process that is
killed may leave a partial file or folder next to it, which the next replacement removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

PathLike = str | os.PathLike[str]


@contextlib.contextmanager
def replaced_file(path: PathLike) -> Iterator[Path]:
    """A file to write in place of another, whose name it takes when the block ends without an error.

    Args:
        path: The name. If it is a link, the file that it leads to is replaced. Something that is not an ordinary
            file, such as a terminal, is written to directly.

    Example:
        >>> import pathlib, tempfile
        >>> page = pathlib.Path(tempfile.mkdtemp(), "page.html")
        >>> with replaced_file(page) as file:
        ...     _ = file.write_text("whole")
        >>> page.read_text()
        'whole'
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder '{target.parent}' to write '{target.name}' to")
    _remove_abandoned(target)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    with _held(partial):
        try:
            yield partial
            if target.exists():
                shutil.copymode(target, partial)
            _to_disk(partial)
            os.replace(partial, target)
            _to_disk(target.parent)
        finally:
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Makes a file and locks it until the end of the block, so that others see that it is being written."""
    if fcntl is None:
        yield
        return
    with path.open("wb") as file:
        with contextlib.suppress(OSError):  # some disks have no locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _remove_abandoned(target: Path) -> None:
    """Removes partial files of a target that killed processes left: nothing holds their locks."""
    if fcntl is None:
        return
    for partial in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 8}.partial"):
        with contextlib.suppress(OSError), partial.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()


def _to_disk(path: Path) -> None:
    """Waits until a file or folder is on disk, if the system supports it."""
    try:
        opened = os.open(path, os.O_RDONLY)
    except OSError:  # some systems cannot open folders
        return
    try:
        if path.is_file():
            os.fsync(opened)
        else:
            with contextlib.suppress(OSError):
                os.fsync(opened)
    finally:
        os.close(opened)


def beside(path: str) -> str:
    """The path to which the replacement of a folder is written: the same in all processes."""
    folder, name = os.path.split(os.path.realpath(path))
    return os.path.join(folder, f".{name}.new")


def set_aside(path: str) -> str:
    """The path of the old folder during a replacement, on a disk that cannot exchange two folders in one step."""
    folder, name = os.path.split(os.path.realpath(path))
    return os.path.join(folder, f".{name}.old")


def replace_folder(path: str) -> None:
    """Gives the folder at `beside(path)` the name `path`, and removes what had that name.

    Linux and macOS exchange two names in one step. If the disk cannot do that, there is a moment when the old folder
    is at `set_aside(path)` and nothing is at `path`.
    """
    target, new, old = os.path.realpath(path), beside(path), set_aside(path)
    going = f"{new}.removed"
    _remove(going)
    if not os.path.exists(target):
        os.rename(new, target)
    _remove(old, going)  # left by a process that was killed
    if os.path.exists(new) and not _exchange(new, target):
        os.rename(target, old)
        os.rename(new, target)
        _remove(old, going)
    _remove(new, going)


def _remove(path: str, going: str | None = None) -> None:
    """Removes a file or a folder; renames it first if another name is given, so this name is never half-removed."""
    if going is not None and os.path.exists(path):
        os.rename(path, going)
        path = going
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def _exchange(a: str, b: str) -> bool:
    """Exchanges two names in one step; False if the system or the disk cannot."""
    library = ctypes.CDLL(None)
    paths = os.fsencode(a), os.fsencode(b)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        return library.renamex_np(*paths, 2) == 0
    if hasattr(library, "renameat2"):
        here = -100  # paths count from the current folder
        return library.renameat2(here, paths[0], here, paths[1], 2) == 0
    return False
