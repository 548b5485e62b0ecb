"""Programs of tools are compiled once and kept on disk, in JAX's persistent cache.

From the first call of a tool on, the cache is on for the process, for programs that take JAX a fifth of a second to
compile, or as long as `jax_persistent_cache_min_compile_time_secs` says. If a folder is set already
(`jax_compilation_cache_dir`), it is used as it is. The environment variable `SONDE_COMPILED` names another folder, or
is `off`. Each kind of processor has a folder of its own, because compiled programs may use instructions that others
lack.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import time
from pathlib import Path

import jax

VARIABLE, OFF = "SONDE_COMPILED", "off"
_DAYS = 30  # what was not used for so long is removed
_MINIMUM = "jax_persistent_cache_min_compile_time_secs"
_JAX_DEFAULT, _SECONDS = 1.0, 0.2  # programs whose layers are one scan take less than a second


@functools.cache
def keep_on_disk() -> None:
    """Turns the cache on, once for a process."""
    named = os.environ.get(VARIABLE, "")
    settings = jax.config.values
    if named == OFF or settings["jax_compilation_cache_dir"] or not settings["jax_enable_compilation_cache"]:
        return
    whole = (
        Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sonde/compiled"
    )
    folder = whole / _processor()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written to: programs are compiled anew
        return
    if not os.access(folder, os.W_OK):
        return
    _remove_unused(folder)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if settings[_MINIMUM] == _JAX_DEFAULT:
        jax.config.update(_MINIMUM, _SECONDS)


def _processor() -> str:
    """A name for the processor and what it can do."""
    about = [platform.machine(), platform.processor()]
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        about += sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]


def _remove_unused(folder: Path) -> None:
    oldest = time.time() - _DAYS * 86400
    for file in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may remove it first
            used = file.stat()
            if max(used.st_atime, used.st_mtime) < oldest:
                file.unlink()
