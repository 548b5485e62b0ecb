"""What a flag of `flax.config` asks of Linen's results; the flags themselves are in `sonde.flax.flags`."""

from __future__ import annotations

import sys
from typing import Any

from sonde.linen.variables.frozen_dict import freeze


def frozen(variables: dict[str, Any]) -> Any:
    """Flax's FrozenDict if Flax is loaded, because programs that set the flag compare with it; else Sonde's."""
    core = getattr(sys.modules.get("flax"), "core", None)
    return getattr(core, "freeze", freeze)(variables)
