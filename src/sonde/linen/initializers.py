"""Initializers of parameters: a module, because `flax.linen.initializers` is one."""

from sonde.ops.initializers import *  # noqa: F403
