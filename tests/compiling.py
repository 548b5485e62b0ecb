"""How test programs are compiled: quickly. To be imported before JAX; pytest and the farm of random programs share it.

Test programs are small and run once, so most of the time would go into compiling them. Four settings halve it:

- XLA leaves out its costly passes: three times faster, and the same arithmetic. `COMPILE=full` compiles as users do.
- A program that was compiled once in this run, in whatever process, is not compiled again: JAX's compilation cache, in
  a folder that goes when the run ends.
- Operations that only move data are done by NumPy outside of transforms (`tests/quick_moves.py`), not compiled.
- Lowering reuses MLIR's context for ten programs, as JAX does from 0.12 on.
"""

from __future__ import annotations

import os
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any


def choose_devices_and_passes() -> None:
    """Four CPU devices, and XLA's flags for quick compilation."""
    flags = ["--xla_force_host_platform_device_count=4"]
    if os.environ.get("COMPILE") != "full":
        flags += ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
        flags += ["--xla_cpu_parallel_codegen_split_count=1"]
        if version("jaxlib").startswith("0.10."):  # later ones have no such flag, and an unknown flag ends the process
            flags += ["--xla_cpu_use_fusion_emitters=false"]
    own = os.environ.get("XLA_FLAGS", "")
    new = [flag for flag in flags if flag.partition("=")[0] not in own]
    os.environ["XLA_FLAGS"] = " ".join([own, *new]).strip()


def cache_programs_in(folder: str) -> None:
    """Has JAX keep every compiled program in a folder, for all processes of a run."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", folder)
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")


def _write_whole_programs() -> None:
    """Has JAX put a compiled program into its cache all at once: another process may read it at any moment."""
    from jax._src import lru_cache

    def put(self: Any, key: str, value: bytes) -> None:
        entry = Path(self.path, f"{key}{lru_cache._CACHE_SUFFIX}")
        if not entry.exists():
            new = entry.with_name(f"{os.getpid()}-{threading.get_ident()}.new")
            new.write_bytes(value)
            new.replace(entry)

    lru_cache.LRUCache.put = put


def _reuse_lowering_contexts(programs: int = 10) -> None:
    """Lets lowering use one MLIR context for several programs. A new one, with its dialects, takes 2 ms."""
    from jax._src.interpreters import mlir

    make, own = mlir.make_ir_context, threading.local()

    def context() -> object:
        if not getattr(own, "left", 0):
            own.context, own.left = make(), programs
        own.left -= 1
        return own.context

    mlir.make_ir_context = context


def compile_quickly() -> None:
    """Changes JAX in this process, in the ways named above."""
    _write_whole_programs()
    if version("jax").split(".")[:2] in (["0", "10"], ["0", "11"]):
        _reuse_lowering_contexts()
    if os.environ.get("COMPILE") != "full":
        from tests.quick_moves import use_quick_moves

        use_quick_moves()
