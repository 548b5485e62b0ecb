"""Runs a process until it ends, or until it has used too much time or memory."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

_POLL = 0.1  # seconds between two looks at the process
_MOST_PRINTED = 200_000_000  # bytes; a program that prints without end must not fill the disk
_MOST_READ = 1_000_000  # bytes of the beginning, and of the end


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What a process may use.

    Attributes:
        seconds: How long it may run.
        gigabytes: How much memory it and its children may use, as far as Linux tells; None for any.
    """

    seconds: float
    gigabytes: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """What a process did.

    Attributes:
        code: Its exit code; negative for the number of a signal.
        stdout: What it printed.
        stderr: What it printed as errors and hints.
        exceeded: Which limit it exceeded, in words; empty if it ended by itself.
    """

    code: int
    stdout: str
    stderr: str
    exceeded: str = ""


async def run_limited(command: Sequence[str], folder: Path, limits: Limits) -> Finished:
    """Runs a command without input. If this is cancelled, the process and its children are ended too."""
    # Files and not pipes: a child that is left behind may keep a pipe open, and nothing has to be read meanwhile.
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # its children can be ended with it
        )
        exceeded, start = "", time.monotonic()
        try:
            while not exceeded and process.poll() is None:
                await asyncio.sleep(_POLL)
                if time.monotonic() - start > limits.seconds:
                    exceeded = f"it ran longer than {limits.seconds:g} seconds"
                elif limits.gigabytes is not None and _memory_of(process.pid) > limits.gigabytes * 1e9:
                    exceeded = f"it used more than {limits.gigabytes:g} GB of memory"
                elif os.fstat(stdout.fileno()).st_size + os.fstat(stderr.fileno()).st_size > _MOST_PRINTED:
                    exceeded = f"it printed more than {_MOST_PRINTED:,} bytes"
        finally:
            _end(process.pid)
            code = process.wait()
        return Finished(code, _text_of(stdout), _text_of(stderr), exceeded)


def _text_of(file: IO[bytes]) -> str:
    """What was printed; of very much the beginning and the end."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = file.read(_MOST_READ)
    if size <= 2 * _MOST_READ:
        return (start + file.read()).decode(errors="replace")
    file.seek(size - _MOST_READ)
    return (start + b"\n...\n" + file.read()).decode(errors="replace")


def _end(group: int) -> None:
    """Ends a process with its children, if any of them still runs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _memory_of(group: int) -> int:
    """The bytes that a process and its children hold in memory; 0 where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return 0
    pages = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                # The name of the program, in brackets, may hold anything; the numbers begin after it.
                numbers = (folder / "stat").read_text().rpartition(")")[2].split()
                if int(numbers[2]) == group:
                    pages += int(numbers[21])
    return pages * os.sysconf("SC_PAGE_SIZE")
