"""Flags of `flax.config` that say how Linen behaves, for programs that set them.

They are Flax's, so they are looked up there if Flax is loaded, and in the environment variables that it reads if not.
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
        name: as `flax.config` has it, such as `"flax_return_frozendict"`.

    Example:
        >>> flag("flax_preserve_adopted_names")
        False
    """
    config = getattr(sys.modules.get("flax"), "config", None)
    if config is not None:
        return bool(getattr(config, name, False))
    return os.environ.get(name.upper(), "").lower() in _YES


def frozen(variables: dict[str, Any]) -> Any:
    """A FrozenDict: that of Flax if Flax is loaded, since programs that set the flag compare with it; else Sonde's."""
    core = getattr(sys.modules.get("flax"), "core", None)
    return getattr(core, "freeze", freeze)(variables)
