"""Initializers of parameters, as a module of its own because `flax.linen.initializers` is one."""

from sonde.ops.named_initializers import *  # noqa: F403
from sonde.ops.named_initializers import __all__ as __all__
