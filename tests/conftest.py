"""Settings for all tests: two CPU devices and quick compilation, decided before JAX is imported; imports from the root.

Test programs are small and run once, so most of the time would go into optimising them. XLA compiles them without its
costly passes: three times faster, and the same arithmetic. `make test COMPILE=full` compiles as users do.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

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
