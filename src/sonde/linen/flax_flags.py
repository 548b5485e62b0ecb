"""Flags of `flax.config` that change how Linen behaves, for programs that set them.

They are looked up in Flax if Flax is loaded, otherwise in the environment variables that Flax reads.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from sonde.linen.frozen_dict import freeze

_YES = ("y", "yes", "t", "true", "on", "1")


def flag(name: str) -> bool:
    """Whether a flag is set.

    Args:
        name: its name in `flax.config`, such as `"flax_return_frozendict"`.

    Example:
        >>> flag("flax_preserve_adopted_names")
        False
    """
    config = getattr(sys.modules.get("flax"), "config", None)
    if config is not None:
        return bool(getattr(config, name, False))
    return os.environ.get(name.upper(), "").lower() in _YES


def frozen(variables: dict[str, Any]) -> Any:
    """Flax's FrozenDict if Flax is loaded, because programs that set the flag compare with it; else Sonde's."""
    core = getattr(sys.modules.get("flax"), "core", None)
    return getattr(core, "freeze", freeze)(variables)
