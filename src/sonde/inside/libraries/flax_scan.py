"""The trial run that Flax's `scan` makes of a loop body, to see what depends on the iteration.

There, every equation with an effect would count as a use of its operands, and Flax would refuse the loop. So nothing is
marked in that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from sonde import _jax
from sonde.core import with_capture_state


def changes(axes_scan: ModuleType) -> Sequence[_jax.Change]:
    """Hides the trial run from captures."""
    del axes_scan
    return _jax.trials_unseen("flax scan", lambda: with_capture_state(None)).changes
