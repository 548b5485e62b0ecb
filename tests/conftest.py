"""Settings for all tests: two CPU devices and quick compilation, decided before JAX is imported; imports from the root.

Test programs are small and run once, so most of the time would go into optimising them. XLA compiles them without its
costly passes: three times faster, and the same arithmetic. `make test COMPILE=full` compiles as users do.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

_FLAGS = ["--xla_force_host_platform_device_count=2"]
if os.environ.get("COMPILE") != "full":
    _FLAGS += ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
    _FLAGS += ["--xla_cpu_parallel_codegen_split_count=1"]
    if version("jaxlib").startswith("0.10."):  # later ones have no such flag, and an unknown flag ends the process
        _FLAGS += ["--xla_cpu_use_fusion_emitters=false"]
_GIVEN = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join([_GIVEN, *(flag for flag in _FLAGS if flag.partition("=")[0] not in _GIVEN)]).strip()

# Test files import what they share (`from tests.core.programs import ...`) however pytest was started.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`@pytest.mark.every(n)`: of all cases of a test, every n-th in each run, the others in the thorough one.

    If n has no factor in common with the numbers of values, those that run have every value of each parameter.
    """
    seen: Counter[str] = Counter()
    for item in items:
        if (mark := item.get_closest_marker("every")) is not None:
            name = item.nodeid.partition("[")[0]
            if seen[name] % mark.args[0]:
                item.add_marker(pytest.mark.thorough)
            seen[name] += 1
