"""Which cases of `@pytest.mark.every(n)` a run has: others at the next commit, so that none is left out for ever.

`ROTATION=all` chooses all of them, `ROTATION=` with a number those of the commit with that number.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def rotation() -> int:
    """A number that depends on the commit, or that of `ROTATION=` in the environment.

    The first process writes it there, so that all processes of a run agree, whatever is committed meanwhile.
    """
    if "ROTATION" not in os.environ:
        command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
        try:
            commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):  # no git, or no repository: an unpacked archive
            commit = "0"
        os.environ["ROTATION"] = str(int(commit[:8], 16))
    return int(os.environ["ROTATION"]) if os.environ["ROTATION"] != "all" else 0


def leaves_out(position: int, n: int) -> bool:
    """Whether the case at this position is not one of those, every n-th, that run."""
    return os.environ.get("ROTATION") != "all" and (position + rotation()) % n != 0
