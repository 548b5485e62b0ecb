"""Settings for all tests: two CPU devices and quick compilation, decided before JAX is imported; imports from the root.

Test programs are small and run once, so most of the time would go into compiling them. Five settings halve it:

- XLA leaves out its costly passes: three times faster, and the same arithmetic. `make test COMPILE=full` compiles as
  users do.
- A program that was compiled once in this run, in whatever process, is not compiled again: JAX's compilation cache, in
  a folder that goes when the run ends.
- Operations that only move data are done by NumPy outside of transforms (`tests/quick_moves.py`), not compiled.
- Lowering reuses MLIR's context for ten programs, as JAX does from 0.12 on.
- Python's garbage collector runs less often, and skips what was imported and what earlier files left.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

_FLAGS = ["--xla_force_host_platform_device_count=2"]
if os.environ.get("COMPILE") != "full":
    _FLAGS += ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
    _FLAGS += ["--xla_cpu_parallel_codegen_split_count=1"]
    if version("jaxlib").startswith("0.10."):  # later ones have no such flag, and an unknown flag ends the process
        _FLAGS += ["--xla_cpu_use_fusion_emitters=false"]
_GIVEN = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([_GIVEN, *(flag for flag in _FLAGS if flag.partition("=")[0] not in _GIVEN)]).strip()

# A folder for what the processes of one run share. The one that makes it removes it.
_OWN_FOLDER = None if "SONDE_TEST_RUN" in os.environ else tempfile.mkdtemp(prefix="sonde-tests-")
if _OWN_FOLDER is not None:
    os.environ["SONDE_TEST_RUN"] = _OWN_FOLDER
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(_OWN_FOLDER, "compiled")))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")

# Test files import what they share (`from tests.core.programs import ...`) however pytest was started.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


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


def pytest_configure(config: pytest.Config) -> None:
    from tests.rotation import rotation

    rotation()  # the processes that this one starts inherit it
    if config.getoption("numprocesses", None):  # the process that hands out tests runs none
        return
    _write_whole_programs()
    if version("jax").split(".")[:2] in (["0", "10"], ["0", "11"]):
        _reuse_lowering_contexts()
    if os.environ.get("COMPILE") != "full":
        from tests.quick_moves import use_quick_moves

        use_quick_moves()


def pytest_collection_finish() -> None:
    """What was imported stays to the end: the garbage collector need not visit it again and again."""
    import hypothesis  # noqa: F401  # asks the collector for what it has frozen, if it comes later
    from tests.freezing import freeze

    freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """What the tests of a file left behind stays too, in JAX's caches."""
    done = yield
    if nextitem is not None and nextitem.path != item.path:
        from tests.freezing import freeze_if_many

        freeze_if_many()
    return done


def pytest_unconfigure() -> None:
    if _OWN_FOLDER is not None:
        shutil.rmtree(_OWN_FOLDER, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`@pytest.mark.every(n)`: of all cases of a test, every n-th in each run, the others in the thorough one.

    If n has no factor in common with the numbers of values, those that run have every value of each parameter.
    """
    from tests.rotation import leaves_out

    seen: Counter[str] = Counter()
    for item in items:
        if (mark := item.get_closest_marker("every")) is not None:
            name = item.nodeid.partition("[")[0]
            if leaves_out(seen[name], mark.args[0]):
                item.add_marker(pytest.mark.thorough)
            seen[name] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how to run the same cases again, if some failed: another commit would choose others."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        from tests.rotation import rotation

        terminalreporter.write_line(f"ROTATION={rotation()} chooses the same cases of tests marked `every` again")
