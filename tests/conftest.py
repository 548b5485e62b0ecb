"""Settings for all tests: two CPU devices and quick compilation, decided before JAX is imported; imports from the root.

`tests/compiling.py` says how programs are compiled quickly. Python's garbage collector runs less often, and skips what
was imported and what earlier files left.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

# Test files import what they share (`from tests.core.programs import ...`) however pytest was started.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.compiling import cache_programs_in, choose_devices_and_passes, compile_quickly

choose_devices_and_passes()

# A folder for what the processes of one run share. The one that makes it removes it.
_OWN_FOLDER = None if "SONDE_TEST_RUN" in os.environ else tempfile.mkdtemp(prefix="sonde-tests-")
if _OWN_FOLDER is not None:
    os.environ["SONDE_TEST_RUN"] = _OWN_FOLDER
    cache_programs_in(str(Path(_OWN_FOLDER, "compiled")))


def pytest_configure(config: pytest.Config) -> None:
    from tests.rotation import rotation

    rotation()  # the processes that this one starts inherit it
    if config.getoption("numprocesses", None):  # the process that hands out tests runs none
        return
    compile_quickly()


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

    Tests begin at different cases, so that those with two or three cases take turns, not all at once.
    If n has no factor in common with the numbers of values, those that run have every value of each parameter.
    """
    from tests.rotation import leaves_out

    seen: Counter[str] = Counter()
    for item in items:
        if (mark := item.get_closest_marker("every")) is not None:
            name = item.nodeid.partition("[")[0]
            if leaves_out(zlib.crc32(name.encode()) + seen[name], mark.args[0]):
                item.add_marker(pytest.mark.thorough)
            seen[name] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how to run the same cases again, if some failed: another commit would choose others."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(
            f"ROTATION={os.environ['ROTATION']} chooses the same cases of tests marked `every` again"
        )
