"""Settings for all tests: two CPU devices, decided before JAX is imported, and the repository's root for imports."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_TWO_DEVICES = "--xla_force_host_platform_device_count=2"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_TWO_DEVICES}".strip()

# Test files import what they share (`from tests.core.programs import ...`) however pytest was started.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
