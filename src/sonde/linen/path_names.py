"""Names that Flax's files `linen/module.py` and `linen/transforms.py` have and that packages use."""

from __future__ import annotations

from sonde.linen.attach import UNSPECIFIED
from sonde.linen.context import context

#: What the current thread is in the middle of; `_context.module_stack[-1]` is the module whose method is running.
_context = context
_unspecified_parent = UNSPECIFIED
